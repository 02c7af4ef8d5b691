//! Which of a folder's images is meant.

use super::json::{Descriptor, Index, Platform, is_index, is_manifest};
use crate::build::error::GatherCause;

/// Indexes within indexes, at most.
const DEPTH_MAX: usize = 4;
/// Indexes that are searched for a digest, at most: one index may be in others any number of times.
const SEARCHED_MAX: u32 = 20;
/// Names and platforms that a message lists.
const LISTED_MAX: usize = 20;
/// Where an image has its name.
const NAME: &str = "org.opencontainers.image.ref.name";

type Load<'l> = &'l dyn Fn(&Descriptor) -> Result<Index, GatherCause>;

/// The manifest of an image: by name or digest, or the only one; of several platforms', the one for this platform.
pub fn choose(
    index: Index,
    reference: Option<&str>,
    platform: Option<&str>,
    load: Load<'_>,
) -> Result<Descriptor, GatherCause> {
    let wanted = Wanted::parse(platform)?;
    let names: Vec<String> = index.manifests.iter().map(name).collect();
    let found = match reference {
        Some(digest) if digest.starts_with("sha256:") => by_digest(index, digest, load)?,
        Some(tag) => index.manifests.into_iter().filter(|image| image_name(image) == Some(tag)).collect(),
        None => index.manifests,
    };
    if found.is_empty() {
        let reference = reference.unwrap_or("image");
        return Err(GatherCause::Image(format!("no {reference} in the folder, which has: {}", list(&names))));
    }
    wanted.narrow(found, reference.is_some(), load, DEPTH_MAX)
}

fn image_name(image: &Descriptor) -> Option<&str> {
    image.annotations.as_ref()?.get(NAME).map(String::as_str)
}

fn name(image: &Descriptor) -> String {
    image_name(image).unwrap_or(&image.digest).to_owned()
}

/// The image with a digest, at any depth.
fn by_digest(index: Index, digest: &str, load: Load<'_>) -> Result<Vec<Descriptor>, GatherCause> {
    let (mut pending, mut searched) = (index.manifests, 0);
    while let Some(image) = pending.pop() {
        if image.digest == digest {
            return Ok(vec![image]);
        }
        if is_index(&image.media_type) && searched < SEARCHED_MAX {
            searched += 1;
            pending.extend(load(&image)?.manifests);
        }
    }
    Ok(Vec::new())
}

/// The platform that is wanted.
struct Wanted(Platform);

impl Wanted {
    fn parse(text: Option<&str>) -> Result<Wanted, GatherCause> {
        let Some(text) = text else {
            let (os, architecture) = ("linux".to_owned(), architecture().to_owned());
            return Ok(Wanted(Platform { os, architecture, variant: None }));
        };
        let mut words = text.split('/').map(str::to_owned);
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some(os), Some(architecture), variant, None) => {
                Ok(Wanted(Platform { os, architecture, variant }))
            }
            _ => Err(GatherCause::Image(format!("a platform is OS/ARCHITECTURE, not {text}"))),
        }
    }

    fn fits(&self, platform: &Platform) -> bool {
        let variant = self.0.variant.is_none() || self.0.variant == platform.variant;
        self.0.os == platform.os && self.0.architecture == platform.architecture && variant
    }

    /// The one for this platform. `one`: they are the same for several.
    fn narrow(
        &self,
        mut images: Vec<Descriptor>,
        one: bool,
        load: Load<'_>,
        depth: usize,
    ) -> Result<Descriptor, GatherCause> {
        // What is named alone may be for any.
        if images.len() > 1 || depth < DEPTH_MAX {
            let named: Vec<String> = images.iter().map(described).collect();
            images.retain(|image| image.platform.as_ref().is_none_or(|platform| self.fits(platform)));
            if images.is_empty() {
                let text = format!("no image for {}, but for: {}", text(&self.0), list(&named));
                return Err(GatherCause::Image(text));
            }
        }
        // Of several variants the first: the one that all of the architecture's machines have is first, by custom.
        if images.len() > 1 && !(one && images.iter().all(|image| image.platform.is_some())) {
            let names: Vec<String> = images.iter().map(name).collect();
            return Err(GatherCause::Image(format!("one of several images must be named: {}", list(&names))));
        }
        let image = images.swap_remove(0);
        if is_manifest(&image.media_type) {
            return Ok(image);
        }
        if !is_index(&image.media_type) {
            return Err(GatherCause::Image(format!("of the unknown type {}", image.media_type)));
        }
        let Some(depth) = depth.checked_sub(1) else {
            return Err(GatherCause::Image("indexes within indexes within indexes".into()));
        };
        let images = load(&image)?.manifests;
        if images.is_empty() {
            return Err(GatherCause::Image(format!("{}: an index without images", name(&image))));
        }
        self.narrow(images, true, load, depth)
    }
}

fn text(platform: &Platform) -> String {
    let Platform { os, architecture, variant } = platform;
    variant
        .as_ref()
        .map_or_else(|| format!("{os}/{architecture}"), |variant| format!("{os}/{architecture}/{variant}"))
}

fn described(image: &Descriptor) -> String {
    image.platform.as_ref().map_or_else(|| name(image), text)
}

fn list(names: &[String]) -> String {
    let more = if names.len() > LISTED_MAX { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(LISTED_MAX)].join(", "))
}

/// This machine's, as Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}
