//! librdmacm.so.1: the RDMA connection manager C ABI
