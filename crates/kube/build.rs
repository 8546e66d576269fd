//! Makes kubelet's messages and services out of its description, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/api.proto");
    let described = protox::compile(["proto/api.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(described)?;
    Ok(())
}
