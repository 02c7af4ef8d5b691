//! Images that share what they have in common, so that thousands of states of one volume cost little.

use crate::device::LateDevice;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use uext4_blockdev::{
    BufferPool, Capabilities, Description, Device, Driving, Error, Geometry, Queue, QueueOptions, Result,
    Sharing, WriteDurability,
};

const PAGE: usize = 4096;
/// Pages that are shared as one until one of them is written.
const GROUP: usize = 64;
type Page = [u8; PAGE];

/// The bytes of a device. A copy shares its pages until one of both is written.
#[derive(Debug, Clone)]
pub struct Image {
    groups: Vec<Arc<Vec<Arc<Page>>>>,
    size: u64,
}

impl Image {
    /// An image with these bytes.
    pub fn new(bytes: &[u8]) -> Image {
        let zero = Arc::new([0; PAGE]);
        let pages = bytes.chunks(PAGE).map(|chunk| {
            if chunk.iter().all(|&byte| byte == 0) {
                return Arc::clone(&zero);
            }
            let mut page = [0; PAGE];
            page[..chunk.len()].copy_from_slice(chunk);
            Arc::new(page)
        });
        let pages: Vec<Arc<Page>> = pages.collect();
        let groups = pages.chunks(GROUP).map(|group| Arc::new(group.to_vec())).collect();
        Image { groups, size: bytes.len() as u64 }
    }

    /// What a device holds.
    ///
    /// # Panics
    /// If it cannot be read.
    #[track_caller]
    pub fn of(device: &dyn Device) -> Image {
        let size = device.geometry().size;
        let pool = BufferPool::new(1 << 20).expect("a buffer");
        let mut buffer = pool.take(1 << 20).expect("a buffer");
        let mut bytes = Vec::with_capacity(size as usize);
        while (bytes.len() as u64) < size {
            let length = (size - bytes.len() as u64).min(buffer.len() as u64) as usize;
            device.read_at(&mut buffer[..length], bytes.len() as u64).expect("read the device");
            bytes.extend_from_slice(&buffer[..length]);
        }
        Image::new(&bytes)
    }

    /// Bytes in it.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `buf` from byte `pos`.
    ///
    /// # Panics
    /// Beyond the end.
    #[track_caller]
    pub fn read(&self, pos: u64, buf: &mut [u8]) {
        let mut done = 0;
        for (page, range) in self.pieces(pos, buf.len()) {
            let count = range.len();
            buf[done..done + count].copy_from_slice(&self.page(page)[range]);
            done += count;
        }
    }

    /// Puts `data` at byte `pos`.
    ///
    /// # Panics
    /// Beyond the end.
    #[track_caller]
    pub fn write(&mut self, pos: u64, data: &[u8]) {
        let mut done = 0;
        for (page, range) in self.pieces(pos, data.len()) {
            let count = range.len();
            let group = Arc::make_mut(&mut self.groups[page / GROUP]);
            Arc::make_mut(&mut group[page % GROUP])[range].copy_from_slice(&data[done..done + count]);
            done += count;
        }
    }

    fn page(&self, page: usize) -> &Arc<Page> {
        &self.groups[page / GROUP][page % GROUP]
    }

    fn pages(&self) -> impl Iterator<Item = &Arc<Page>> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    /// The pages of a range, and where in each it lies.
    #[track_caller]
    fn pieces(
        &self,
        pos: u64,
        length: usize,
    ) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + use<> {
        let end = pos.checked_add(length as u64).filter(|&end| end <= self.size);
        let end =
            end.unwrap_or_else(|| panic!("{length} bytes at {pos} of an image of {}", self.size)) as usize;
        let mut at = pos as usize;
        std::iter::from_fn(move || {
            let (page, start) = (at / PAGE, at % PAGE);
            let count = (PAGE - start).min(end - at);
            at += count;
            (count > 0).then_some((page, start..start + count))
        })
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.pages().flat_map(|page| page.iter().copied()).collect();
        bytes.truncate(self.size as usize);
        bytes
    }

    /// Writes it into a file, which becomes as long as the image; pages of zeros become holes.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[track_caller]
    pub fn save(&self, path: &Path) {
        let save = || {
            let file = std::fs::File::create(path)?;
            file.set_len(self.size)?;
            for (index, page) in self.pages().enumerate().filter(|(_, page)| ***page != [0; PAGE]) {
                let pos = (index * PAGE) as u64;
                let length = (self.size - pos).min(PAGE as u64) as usize;
                file.write_all_at(&page[..length], pos)?;
            }
            Ok(())
        };
        save().unwrap_or_else(|e: std::io::Error| panic!("{}: {e}", path.display()));
    }

    /// A device that starts with these bytes and keeps its changes to itself. Queued requests land when they are
    /// reaped.
    pub fn device(&self, logical_block: u32) -> Arc<dyn Device> {
        let device = ImageDevice { image: Mutex::new(self.clone()), size: self.size, logical_block };
        Arc::new(LateDevice::new(Arc::new(device)))
    }
}

/// An image as a device, without queues: those are the late layer's.
struct ImageDevice {
    image: Mutex<Image>,
    size: u64,
    logical_block: u32,
}

impl ImageDevice {
    fn image(&self, pos: u64, length: u64) -> Result<std::sync::MutexGuard<'_, Image>> {
        self.geometry().check(pos, length)?;
        // A panic beside us leaves whole bytes behind, so the image is still one.
        Ok(self.image.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl std::fmt::Debug for ImageDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ImageDevice({} bytes)", self.size)
    }
}

impl Device for ImageDevice {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, logical_block: self.logical_block, memory_align: 512 }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: true,
            fua: true,
            nowait: true,
            discard: true,
            read_only: false,
            dax: None,
        }
    }

    fn describe(&self) -> Description {
        Description {
            engine: "mem",
            locator: self.size.to_string(),
            layers: vec!["crash state".into()],
            sharing: Sharing::Private,
            driving: Driving::Engine,
            tags: None,
            notes: Vec::new(),
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let image = self.image(pos, buf.len() as u64)?;
        self.geometry().check_memory(buf.as_ptr() as usize)?;
        image.read(pos, buf);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], pos: u64, _: WriteDurability) -> Result<()> {
        let mut image = self.image(pos, buf.len() as u64)?;
        self.geometry().check_memory(buf.as_ptr() as usize)?;
        image.write(pos, buf);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Leaves the bytes: nobody may expect zeros.
    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.image(pos, length).map(drop)
    }

    fn queue(&self, _: &QueueOptions) -> Result<Queue> {
        Err(Error::Unsupported("queues of a crash state without its layer".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_until_written_and_ranges_cross_pages() {
        let mut bytes = vec![0; 3 * PAGE + 512];
        bytes[PAGE..2 * PAGE].fill(7);
        let first = Image::new(&bytes);
        let mut second = first.clone();
        second.write(PAGE as u64 - 512, &[9; 1024]);
        let mut back = vec![0; 2048];
        second.read(PAGE as u64 - 1024, &mut back);
        assert_eq!([back[511], back[512], back[1535], back[1536]], [0, 9, 9, 7]);
        assert_eq!(first.bytes(), bytes);
        assert!(
            Arc::ptr_eq(&first.groups[0][2], &second.groups[0][2])
                && !Arc::ptr_eq(&first.groups[0][1], &second.groups[0][1])
        );
        assert!(std::panic::catch_unwind(|| first.read(first.size() - 1, &mut [0; 2])).is_err());
    }

    #[test]
    fn devices_and_files_have_the_bytes() {
        let mut bytes = vec![0; 5 * PAGE + 512];
        crate::Rng::new(1).fill(&mut bytes[PAGE..2 * PAGE]);
        bytes[5 * PAGE] = 1;
        let image = Image::new(&bytes);
        let device = image.device(512);
        assert_eq!(Image::of(&*device).bytes(), bytes);
        let mut block = BufferPool::new(PAGE).unwrap().take(512).unwrap();
        block.fill(3);
        device.write_at(&block, 512, WriteDurability::Cached).unwrap();
        assert_eq!(Image::of(&*device).bytes()[512..1024], [3; 512]);
        assert_eq!(image.bytes(), bytes, "a device keeps its changes to itself");
        let file = tempfile::NamedTempFile::new().unwrap();
        image.save(file.path());
        assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
    }
}
