//! Compiles every `.proto` file under `proto/` without a protoc: protox parses, tonic generates.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::prost::Message;

/// Described, but served and called by nobody: only its descriptor is kept.
const DESCRIPTOR_ONLY: &str = "apache/rocketmq/v2/admin.proto";

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new("proto");
    println!("cargo::rerun-if-changed=proto");
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();

    let mut set = protox::compile(&files, [root])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), set.encode_to_vec())?;

    set.file.retain(|file| file.name() != DESCRIPTOR_ONLY);
    tonic_prost_build::configure().bytes(".").compile_fds(set)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
