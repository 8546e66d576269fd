//! The software RDMA device: PD, MR, CQ, SRQ, QP and their progress
