//! The image: nothing but the program, in the layout of the Open Container Initiative. No daemon is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Contents, emptied, sha256, tree, write_json};
use crate::Failure;
use crate::command::output;
use crate::workspace::Workspace;

/// Largest layer of an image that is published.
pub(super) const MAX_LAYER_BYTES: u64 = 20_000_000;

/// The user in the image, and its group.
const USER: u32 = 65532;

/// Makes the layer and the configuration of a machine's image, and returns the description of its manifest.
pub(super) fn manifest(
    _: &Workspace,
    contents: &Contents<'_>,
    folder: &Path,
) -> Result<Value, Failure> {
    let layout = folder.join("image");
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    let root = emptied(&folder.join("image-root"))?;
    for place in ["etc/sterna", "usr/bin", "var/lib/sterna"] {
        fs::create_dir_all(root.join(place))?;
    }
    fs::copy(contents.program, root.join("usr/bin/sterna"))?;
    fs::copy(
        contents.papers.join("etc/sterna/sterna.toml"),
        root.join("etc/sterna/sterna.toml"),
    )?;
    tree::set_modes(&root, &["usr/bin/sterna"])?;
    output(
        Command::new("chmod")
            .arg("700")
            .arg(root.join("var/lib/sterna")),
    )?;
    let layer = folder.join("layer.tar");
    let owner = [format!("--owner={USER}"), format!("--group={USER}")];
    tree::pack(&root, &layer, &owner.each_ref().map(String::as_str))?;
    fs::remove_dir_all(&root)?;
    let unpacked = sha256(&layer)?;
    let layer = tree::compressed(&layer)?;
    let bytes = fs::metadata(&layer)?.len();
    let most = contents.max_layer_bytes;
    if bytes > most {
        return Err(Failure(format!(
            "the image has {bytes} bytes, more than {most}"
        )));
    }
    let (architecture, variant) = contents.machine.image;
    let mut configuration = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["STATE_DIRECTORY=/var/lib/sterna", "STERNA_CONFIG=/etc/sterna/sterna.toml"],
            "Entrypoint": ["/usr/bin/sterna"],
            "Cmd": ["serve"],
            "Volumes": { "/var/lib/sterna": {} },
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "sterna",
                "org.opencontainers.image.version": contents.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{unpacked}")] },
    });
    let mut platform = json!({ "architecture": architecture, "os": "linux" });
    if let Some(variant) = variant {
        configuration["variant"] = variant.into();
        platform["variant"] = variant.into();
    }
    let layer = blob(
        &layout,
        &layer,
        "application/vnd.oci.image.layer.v1.tar+gzip",
    )?;
    let configuration = json_blob(
        folder,
        &configuration,
        "application/vnd.oci.image.config.v1+json",
    )?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": configuration,
        "layers": [layer],
    });
    let mut description = json_blob(
        folder,
        &manifest,
        "application/vnd.oci.image.manifest.v1+json",
    )?;
    description["platform"] = platform;
    Ok(description)
}

/// Packs the images of all machines as one archive.
pub(super) fn archive(images: &[Value], version: &str, folder: &Path) -> Result<PathBuf, Failure> {
    let layout = folder.join("image");
    write_json(
        &layout.join("oci-layout"),
        &json!({ "imageLayoutVersion": "1.0.0" }),
    )?;
    let mut images = images.to_vec();
    for image in &mut images {
        image["annotations"] = json!({ "org.opencontainers.image.ref.name": version });
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": images,
    });
    write_json(&layout.join("index.json"), &index)?;
    let file = folder.join(format!("sterna-{version}.oci.tar"));
    tree::pack(&layout, &file, &["--owner=0", "--group=0"])?;
    fs::remove_dir_all(&layout)?;
    Ok(file)
}

fn json_blob(folder: &Path, value: &Value, media_type: &str) -> Result<Value, Failure> {
    let file = folder.join("blob.json");
    write_json(&file, value)?;
    blob(&folder.join("image"), &file, media_type)
}

/// Moves a file into the layout, by its digest, and describes it.
fn blob(layout: &Path, file: &Path, media_type: &str) -> Result<Value, Failure> {
    let digest = sha256(file)?;
    let size = fs::metadata(file)?.len();
    fs::rename(file, layout.join("blobs/sha256").join(&digest))?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size }))
}
