//! UDP input and output with segmentation offload
