//! libibverbs.so.1: the verbs C ABI
