//! Opening a device from its specification: the only place that picks an engine and stacks layers.
//!
//! From the inside out: engine, partition or offset, overlay file, masks (`ro` where the engine has no such mode,
//! `cache`, `fua`), delays. `mem:` itself provides the requested cache and FUA.

use crate::engine::{DaxDevice, MemoryDevice, MemoryOptions, NullDevice, NvmeDevice};
use crate::layer::{LatencyDevice, Mask, MaskDevice, SliceDevice};
use crate::own::{self, Claim};
use crate::registry::{OpenOptions, Registry};
use crate::spec::{Cache, DeviceSpec, Format, Locator, Named, Scheme, SpecOptions};
use crate::store::{ImageOptions, open_file};
use crate::{Device, Error, Result, overlaid, partition};
use std::fs::File;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

/// An opened device. Its lock or exclusive claim lives until the device and all its queues are dropped.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The outermost layer.
    pub device: Arc<dyn Device>,
}

/// Opens the device that `spec` names.
///
/// # Errors
/// [`Error::InUse`] if the device is in use, [`Error::Open`] if the system refuses, [`Error::Partition`] if there is no
/// such partition, [`Error::OutOfRange`] or [`Error::Misaligned`] for an impossible `offset`, [`Error::Overlay`] for an
/// overlay file that cannot be used, and [`Error::Unsupported`] for options that claim what the device lacks:
/// `cache=none` and `fua=on` are accepted on real devices only if they are true, and `flush_rate` only by `mem:`, which
/// models its cache.
pub fn open(spec: &DeviceSpec, options: OpenOptions) -> Result<Opened> {
    open_with(spec, options, &Registry::EMPTY)
}

/// [`open`] with what other crates have: formats of images beyond raw ones, whose disk is the device then, and engines
/// for the devices of servers.
///
/// # Errors
/// Those of [`open`], of the formats and of the engines.
pub fn open_with(spec: &DeviceSpec, options: OpenOptions, registry: &Registry<'_>) -> Result<Opened> {
    if spec.options.flush_rate.is_some() && spec.scheme != Scheme::Memory {
        return Err(Error::Unsupported(format!("`flush_rate` on {spec}: only `mem:` models its cache")));
    }
    let write = options.write && !spec.options.read_only;
    let overlay = spec.options.overlay.as_deref();
    // The base of an overlay is never written to.
    let device = open_engine(spec, OpenOptions { write: write && overlay.is_none(), ..options }, registry)?;
    let mut device = narrow(device, &spec.options)?;
    if let Some(file) = overlay {
        device = overlaid::open_over(device, spec, file, write, options.force)?;
    }
    let device = mask(device, spec, write)?;
    Ok(Opened { device: delay(device, spec) })
}

fn open_engine(spec: &DeviceSpec, options: OpenOptions, registry: &Registry<'_>) -> Result<Arc<dyn Device>> {
    let SpecOptions { format, named, .. } = spec.options;
    let image = |path, sync, write| {
        let image = ImageOptions { path, write, force: options.force, sync, format, named };
        open_image(&image, registry)
    };
    let bytes_only =
        matches!(spec.scheme, Scheme::Dax | Scheme::Nvme | Scheme::Memory) || spec.scheme.is_remote();
    if bytes_only && (format.is_some_and(|format| format != Format::Raw) || named != Named::default()) {
        return Err(Error::Unsupported(format!("images in a format of their own by `{}:`", spec.scheme)));
    }
    Ok(match (spec.scheme, &spec.locator) {
        (Scheme::File, Locator::Path(path)) => image(path, false, options.write)?,
        (Scheme::Sync, Locator::Path(path)) => image(path, true, options.write)?,
        (Scheme::Dax, Locator::Path(path)) => Arc::new(open_dax(path, options)?),
        (Scheme::Nvme, Locator::Path(path)) => {
            Arc::new(NvmeDevice::open(path, options.write, options.force)?)
        }
        (Scheme::Memory, Locator::Size(size)) => Arc::new(open_memory(*size, &spec.options)?),
        // The image is only copied: nothing is ever written to it.
        (Scheme::Null, Locator::Path(path)) => Arc::new(NullDevice::load(image(path, true, false)?)?),
        (scheme, Locator::Remote(_)) if scheme.is_remote() => registry.open(spec, options)?,
        _ => {
            let reason = format!("`{}:` cannot open this kind of locator", spec.scheme);
            return Err(Error::BadSpec { spec: spec.to_string(), reason });
        }
    })
}

/// Opens a file, and the image in it.
fn open_image(options: &ImageOptions<'_>, registry: &Registry<'_>) -> Result<Arc<dyn Device>> {
    let file = open_file(options)?;
    match registry.formats.recognise(&file, options)? {
        Format::Raw => Ok(Arc::new(file)),
        format => registry.formats.open(format, Arc::new(file.growing()), options),
    }
}

fn open_dax(path: &Path, options: OpenOptions) -> Result<DaxDevice> {
    let OpenOptions { write, force } = options;
    let claimed = own::claim(Claim { path, write, force, direct: false })?;
    DaxDevice::new(File::from(claimed.file), path.display().to_string(), write, claimed.sharing)
}

fn open_memory(size: u64, options: &SpecOptions) -> Result<MemoryDevice> {
    let volatile_cache = options.cache == Some(Cache::Volatile);
    MemoryDevice::new(MemoryOptions {
        volatile_cache,
        // A requested volatile cache comes without FUA, as on most disks, unless FUA is requested too.
        fua: options.fua.unwrap_or(!volatile_cache),
        ..MemoryOptions::new(size)
    })
}

/// `partition=N` and `offset=B`.
fn narrow(device: Arc<dyn Device>, options: &SpecOptions) -> Result<Arc<dyn Device>> {
    if let Some(number) = options.partition {
        let partition::Extent { start, size } = partition::find(&*device, number)?;
        let label = format!("partition {number} (byte {start}, {size} bytes)");
        return Ok(Arc::new(SliceDevice::new(device, start, size, label)?));
    }
    if let Some(start) = options.offset {
        let whole = device.geometry();
        if start >= whole.size {
            return Err(Error::OutOfRange { pos: start, length: 0, size: whole.size });
        }
        return Ok(Arc::new(SliceDevice::new(device, start, whole.size - start, format!("offset {start}"))?));
    }
    Ok(device)
}

/// `cache`, `fua`, and `ro` for engines without a read-only mode.
fn mask(device: Arc<dyn Device>, spec: &DeviceSpec, write: bool) -> Result<Arc<dyn Device>> {
    let real = device.capabilities();
    // `null:` never writes to its image. Opened for reading, it keeps its unwrapped queue unless `ro` is given.
    let guard = if spec.scheme == Scheme::Null { spec.options.read_only } else { !write };
    let mut mask = Mask { read_only: guard && !real.read_only, ..Mask::default() };
    if spec.scheme != Scheme::Memory {
        match spec.options.cache {
            Some(Cache::None) if real.volatile_cache => {
                return Err(claim_refused(spec, "cache=none", "the device has a volatile write cache"));
            }
            Some(Cache::Volatile) => mask.volatile_cache = !real.volatile_cache,
            Some(Cache::None) | None => {}
        }
        match spec.options.fua {
            Some(true) if !real.fua => {
                return Err(claim_refused(spec, "fua=on", "the device has no FUA"));
            }
            Some(false) => mask.no_fua = real.fua,
            Some(true) | None => {}
        }
    }
    Ok(if mask == Mask::default() { device } else { Arc::new(MaskDevice::new(device, mask)) })
}

fn claim_refused(spec: &DeviceSpec, option: &str, fact: &str) -> Error {
    Error::Unsupported(format!("`{option}` on {spec}: {fact}, and this option cannot change that"))
}

/// `latency`, `flush_latency`, `fua_latency` and `flush_rate`.
fn delay(device: Arc<dyn Device>, spec: &DeviceSpec) -> Arc<dyn Device> {
    let SpecOptions { latency, flush_latency, fua_latency, flush_rate, .. } = spec.options;
    let flush_rate = flush_rate.and_then(NonZeroU64::new);
    if latency.or(flush_latency).or(fua_latency).is_none() && flush_rate.is_none() {
        return device;
    }
    let delayed = LatencyDevice::new(device, latency, flush_latency);
    Arc::new(delayed.with_fua_latency(fua_latency).with_flush_rate(flush_rate))
}
