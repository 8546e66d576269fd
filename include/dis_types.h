/*
 * Types that <sisci_api.h> shares with other interfaces: nodes and adapters by name.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef DIS_TYPES_H
#define DIS_TYPES_H

/* Most adapters of a host. */
#define DIS_MAX_NSCIS 16

/* Node ids of a host's adapters; those behind the last are 0. */
typedef unsigned int dis_nodeId_list_t[DIS_MAX_NSCIS];

/* Kinds of adapters. This library has one, which is made of software. */
typedef enum {
	DIS_ADAPTER_TYPE_UNKNOWN = 0,
	DIS_ADAPTER_TYPE_SOFTWARE = 1
} dis_virt_adapter_t;

typedef dis_virt_adapter_t dis_adapter_type_t;

/* The node id that means all nodes with a segment of a group (reflective memory). */
#define DIS_BROADCAST_NODEID_GROUP_ALL 252

/* Most entries of a vector for SCIStartDmaTransferVec. */
#define DIS_DMA_MAX_VECLEN 256

/* A piece of a DMA transfer: bytes, offsets in the two segments, flags (not looked at). */
typedef struct dis_dma_vec {
	unsigned int size;
	unsigned int local_offset;
	unsigned int remote_offset;
	unsigned int flags;
} dis_dma_vec_t;

#endif
