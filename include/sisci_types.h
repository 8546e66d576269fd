/*
 * Types of the SISCI interface.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef SISCI_TYPES_H
#define SISCI_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "dis_types.h"
#include "sisci_error.h"

/* Which way an argument goes; for the reader only. */
#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif
#ifndef IN_OUT
#define IN_OUT
#endif

/*
 * Handles. They are not addresses: the library looks each up, and answers one that it does not
 * know, or knows no more, with SCI_ERR_ILLEGAL_PARAMETER.
 */
typedef struct sci_desc *sci_desc_t;
typedef struct sci_local_segment *sci_local_segment_t;
typedef struct sci_remote_segment *sci_remote_segment_t;
typedef struct sci_map *sci_map_t;
typedef struct sci_sequence *sci_sequence_t;
typedef struct sci_dma_queue *sci_dma_queue_t;
typedef struct sci_dma_channel *sci_dma_channel_t;
typedef struct sci_local_interrupt *sci_local_interrupt_t;
typedef struct sci_remote_interrupt *sci_remote_interrupt_t;
typedef struct sci_local_data_interrupt *sci_local_data_interrupt_t;
typedef struct sci_remote_data_interrupt *sci_remote_data_interrupt_t;
typedef struct sci_block_transfer *sci_block_transfer_t;
typedef struct sci_smartio_device *sci_smartio_device_t;
/* Its older name. */
typedef sci_smartio_device_t sci_device_t;

/* What has happened to a segment. */
typedef enum {
	SCI_CB_CONNECT = 1,
	SCI_CB_DISCONNECT = 2,
	SCI_CB_NOT_OPERATIONAL = 3,
	SCI_CB_OPERATIONAL = 4,
	SCI_CB_LOST = 5
} sci_segment_cb_reason_t;

#define MAX_CB_REASON SCI_CB_LOST

/* Where a DMA queue is. */
typedef enum {
	SCI_DMAQUEUE_IDLE = 0,
	SCI_DMAQUEUE_GATHER = 1,
	SCI_DMAQUEUE_POSTED = 2,
	SCI_DMAQUEUE_DONE = 3,
	SCI_DMAQUEUE_ABORTED = 4,
	SCI_DMAQUEUE_ERROR = 5
} sci_dma_queue_state_t;

/* What a sequence says of the stores since it was started. */
typedef enum {
	SCI_SEQ_OK = 0,
	SCI_SEQ_RETRIABLE = 1,
	SCI_SEQ_NOT_RETRIABLE = 2,
	SCI_SEQ_PENDING = 3
} sci_sequence_status_t;

/* What a callback wants: to be called no more, or again. */
typedef enum {
	SCI_CALLBACK_CANCEL = 1,
	SCI_CALLBACK_CONTINUE = 2
} sci_callback_action_t;

/* Kinds of DMA engines. All mean this library's. */
typedef enum {
	SCI_DMA_TYPE_DONTCARE = 1,
	SCI_DMA_TYPE_ADAPTER = 2,
	SCI_DMA_TYPE_GLOBAL = 3,
	SCI_DMA_TYPE_SYSTEM = 4,
	SCI_DMA_TYPE_TRANSPARENT = 5
} sci_dma_type_t;

/* An address on an I/O bus. */
typedef unsigned long long sci_ioaddr_t;

/* A place in another node's memory, as SCI named it. */
typedef struct sci_address {
	unsigned short nodeId;
	unsigned short offsHi;
	unsigned int offsLo;
} sci_address_t;

/*
 * Callbacks. They are called one after another by a thread of the library, and may call the
 * library, also to remove the object that they belong to.
 */
typedef sci_callback_action_t (*sci_cb_local_segment_t)(void *arg, sci_local_segment_t segment,
		sci_segment_cb_reason_t reason, unsigned int nodeId, unsigned int localAdapterNo,
		sci_error_t error);
typedef sci_callback_action_t (*sci_cb_remote_segment_t)(void *arg, sci_remote_segment_t segment,
		sci_segment_cb_reason_t reason, sci_error_t status);
typedef sci_callback_action_t (*sci_cb_dma_t)(void *arg, sci_dma_queue_t queue,
		sci_error_t status);
typedef sci_callback_action_t (*sci_cb_interrupt_t)(void *arg, sci_local_interrupt_t interrupt,
		sci_error_t status);
typedef sci_callback_action_t (*sci_cb_data_interrupt_t)(void *arg,
		sci_local_data_interrupt_t interrupt, void *data, unsigned int length,
		sci_error_t status);
typedef int (*sci_cb_block_transfer_t)(void *arg, sci_block_transfer_t block, sci_error_t status);

/* Arguments of SCIQuery. */
typedef struct sci_query_string {
	char *str;
	unsigned int length;
} sci_query_string_t;

typedef struct sci_query_adapter {
	unsigned int localAdapterNo;
	unsigned int portNo;
	unsigned int subcommand;
	void *data;
} sci_query_adapter_t;

typedef struct sci_query_system {
	unsigned int subcommand;
	void *data;
} sci_query_system_t;

typedef struct sci_query_dma {
	unsigned int localAdapterNo;
	unsigned int subcommand;
	void *data;
} sci_query_dma_t;

typedef struct sci_query_local_segment {
	sci_local_segment_t segment;
	unsigned int subcommand;
	union {
		sci_ioaddr_t ioaddr;
	} data;
} sci_query_local_segment_t;

typedef struct sci_query_remote_segment {
	sci_remote_segment_t segment;
	unsigned int subcommand;
	union {
		sci_ioaddr_t ioaddr;
	} data;
} sci_query_remote_segment_t;

typedef struct sci_query_map {
	sci_map_t map;
	unsigned int subcommand;
	unsigned long long data;
} sci_query_map_t;

/* What a DMA engine can do. */
typedef struct sci_dma_capabilities {
	unsigned int num_channels;
	unsigned int max_transfer_size;
	unsigned int max_vector_length;
	unsigned int support_mem2io;
	unsigned int support_io2mem;
	unsigned int support_io2io;
	unsigned int min_align_bytes;
	unsigned int suggested_align_bytes;
} sci_dma_capabilities_t;

/* Lent devices. There are none. */
typedef struct sci_smartio_query_device {
	uint64_t fdid;
	unsigned int subcommand;
	void *data;
} sci_smartio_query_device_t;

typedef struct sci_smartio_device_info {
	uint64_t fdid;
	uint16_t pci_device_id;
	uint16_t pci_vendor_id;
	uint32_t pci_class;
	uint16_t pci_subsystem_device_id;
	uint16_t pci_subsystem_vendor_id;
	uint64_t pci_serial_number;
	uint16_t remote_bdf;
	uint16_t local_bdf;
	unsigned int adapter;
	unsigned int nodeid;
	int physical_slot;
	char user_name[64];
	char uuid[37];
} sci_smartio_device_info_t;

#endif
