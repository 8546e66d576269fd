//! SISCI's table of handles, in every interleaving of small scenarios: the very file, with loom's
//! atomics and lock in it. The models are here, beside the others, because the library that the
//! table belongs to is not built for a checker.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p causeway-shm --release --test handle_models`
#![cfg(loom)]

#[path = "models/checker.rs"]
mod checker;
#[path = "models/handles.rs"]
mod handles;
#[path = "models/sound.rs"]
mod sound;
#[path = "models/unclaimed.rs"]
mod unclaimed;
