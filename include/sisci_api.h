/*
 * The SISCI interface: shared memory segments, DMA, interrupts.
 *
 * Conventions of every function:
 *
 * - `error` gets SCI_ERR_OK or why the call failed; the other results are set only on success. It
 *   may be NULL for who does not want to know.
 * - `flags` is 0 or flags that the function names; any other is SCI_ERR_ILLEGAL_FLAG.
 * - `localAdapterNo` is 0. Another is SCI_ERR_NO_SUCH_ADAPTERNO, and one that no host could have
 *   SCI_ERR_ILLEGAL_ADAPTERNO.
 * - A handle that is not one, or of something removed, is SCI_ERR_ILLEGAL_PARAMETER, as is NULL
 *   where a pointer is needed.
 * - Timeouts are milliseconds; SCI_INFINITE_TIMEOUT is no limit.
 * - Functions may be called by several threads at once. Removing something ends waits for it with
 *   SCI_ERR_CANCELLED.
 * - A child made by fork() has none of its parent's handles.
 *
 * docs/SISCI.md says which errors each function gives, and where this library differs from
 * hardware.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef SISCI_API_H
#define SISCI_API_H

#include "sisci_types.h"
#include "sisci_error.h"
#include "sisci_api_macros.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Constants are variables of the library, so that programs take its values, not those of the
 * header they were compiled with. They cannot be case labels.
 */

/* --- Constants: waiting --- */
extern const unsigned int SCI_INFINITE_TIMEOUT;

/* --- Constants: descriptors and nodes --- */
extern const unsigned int SCI_FLAG_THREAD_SAFE;
extern const unsigned int SCI_LOCAL_HOST;

/* --- Constants: segments --- */
extern const unsigned int SCI_FLAG_USE_CALLBACK;
extern const unsigned int SCI_FLAG_EMPTY;
extern const unsigned int SCI_FLAG_PRIVATE;
extern const unsigned int SCI_FLAG_DMA_SOURCE_ONLY;
extern const unsigned int SCI_FLAG_FORCE_REMOVE;
extern const unsigned int SCI_FLAG_ALLOW_UNICAST;
extern const unsigned int SCI_FLAG_PHYSICAL;
extern const unsigned int SCI_FLAG_CUDA_BUFFER;
extern const unsigned int SCI_FLAG_SCIF_BUFFER;
extern const unsigned int SCI_FLAG_BROADCAST;
extern const unsigned int SCI_FLAG_AUTO_ID;
extern const unsigned int SCI_FLAG_BROADCAST_SHARED;
extern const unsigned int SCI_FLAG_FORCE_DISCONNECT;
extern const unsigned int SCI_FLAG_NOTIFY;
extern const unsigned int SCI_FLAG_ASYNCHRONOUS_CONNECT;
extern const unsigned int SCI_FLAG_LOCK_USER_MEM;

/* --- Constants: maps --- */
extern const unsigned int SCI_FLAG_FIXED_MAP_ADDR;
extern const unsigned int SCI_FLAG_READONLY_MAP;
extern const unsigned int SCI_FLAG_LOCK_OPERATION;
extern const unsigned int SCI_FLAG_CONDITIONAL_INTERRUPT_MAP;
extern const unsigned int SCI_FLAG_UNCONDITIONAL_DATA_INTERRUPT_MAP;
extern const unsigned int SCI_FLAG_IO_MAP_IOSPACE;
extern const unsigned int SCI_FLAG_NO_MEMORY_LOOPBACK;
extern const unsigned int SCI_FLAG_NO_MEMORY_LOOPBACK_MAP;
extern const unsigned int SCI_FLAG_SHARED_MAP;
extern const unsigned int SCI_FLAG_WRITE_BACK_CACHE_MAP;
extern const unsigned int SCI_FLAG_READ_PREFETCH_AGGR_HOLD_MAP;
extern const unsigned int SCI_FLAG_READ_PREFETCH_NO_HOLD_MAP;
extern const unsigned int SCI_FLAG_DMOVE_MAP;
extern const unsigned int SCI_FLAG_WRITES_DISABLE_GATHER_MAP;
extern const unsigned int SCI_FLAG_DISABLE_128_BYTES_PACKETS;

/* --- Constants: copies and sequences --- */
extern const unsigned int SCI_FLAG_BLOCK_READ;
extern const unsigned int SCI_FLAG_ERROR_CHECK;
extern const unsigned int SCI_FLAG_FAST_BARRIER;
extern const unsigned int SCI_FLAG_NO_FLUSH;
extern const unsigned int SCI_FLAG_NO_STORE_BARRIER;
extern const unsigned int SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY;
extern const unsigned int SCI_FLAG_CACHE_FLUSH;
extern const unsigned int SCI_FLAG_CACHE_INVALIDATE;

/* --- Constants: DMA --- */
extern const unsigned int SCI_FLAG_DMA_POST;
extern const unsigned int SCI_FLAG_DMA_WAIT;
extern const unsigned int SCI_FLAG_DMA_RESET;
extern const unsigned int SCI_FLAG_DMA_READ;
extern const unsigned int SCI_FLAG_DMA_PHDMA;
extern const unsigned int SCI_FLAG_DMA_GLOBAL;
extern const unsigned int SCI_FLAG_DMA_SYSDMA;
extern const unsigned int SCI_FLAG_DMA_USER_MEM;
extern const unsigned int SCI_FLAG_DMA_ADAPTER;
extern const unsigned int SCI_FLAG_DMA_CHANNEL_SHARED;
extern const unsigned int SCI_DMA_CHANNEL_ID_DONTCARE;

/* --- Constants: interrupts --- */
extern const unsigned int SCI_FLAG_FIXED_INTNO;
extern const unsigned int SCI_FLAG_SHARED_INT;
extern const unsigned int SCI_FLAG_CONDITIONAL_INTERRUPT;
extern const unsigned int SCI_FLAG_COUNTING_INT;
extern const unsigned int SCI_FLAG_SHARE_EXTERNAL;
extern const unsigned int SCI_FLAG_PCIE_REQUESTER_GLOBAL;

/* --- Constants: SmartIO --- */
extern const unsigned int SCI_FLAG_EXCLUSIVE;
extern const unsigned int SCI_FLAG_DEVICE_SIDE_ONLY;
extern const unsigned int SCI_FLAG_LOCAL_ONLY;
extern const unsigned int SCI_FLAG_DEVICE_PREFER_BANDWIDTH;
extern const unsigned int SCI_FLAG_HOST_PREFER_BANDWIDTH;
extern const unsigned int SCI_FLAG_SPECIFY_PATH;
extern const unsigned int SCI_FLAG_SPECIFY_SLOT;
extern const unsigned int SCI_FLAG_BAR;
extern const unsigned int SCI_FLAG_SHARED;
extern const unsigned int SCI_MEMTYPE_BAR;
extern const unsigned int SCI_MEMTYPE_PRIVATE;
extern const unsigned int SCI_MEMTYPE_SHARED;
extern const unsigned int SCI_MEMACCESS_DEVICE_READ;
extern const unsigned int SCI_MEMACCESS_DEVICE_WRITE;
extern const unsigned int SCI_MEMACCESS_HOST_READ;
extern const unsigned int SCI_MEMACCESS_HOST_WRITE;
extern const unsigned int SCI_MEMACCESS_MULTIHOST_READ;
extern const unsigned int SCI_MEMACCESS_MULTIHOST_WRITE;
extern const unsigned int SCI_MEMACCESS_P2P_READ;
extern const unsigned int SCI_MEMACCESS_P2P_WRITE;

/* --- Constants: queries --- */
extern const unsigned int SCI_Q_ADAPTER;
extern const unsigned int SCI_Q_SYSTEM;
extern const unsigned int SCI_Q_LOCAL_SEGMENT;
extern const unsigned int SCI_Q_REMOTE_SEGMENT;
extern const unsigned int SCI_Q_MAP;
extern const unsigned int SCI_Q_DMA;
extern const unsigned int SCI_Q_VENDORID;
extern const unsigned int SCI_Q_API;
extern const unsigned int SCI_Q_SISCI_DRIVER_VERSION;
extern const unsigned int SCI_Q_DEVICE;

/* --- Constants: queries of adapters --- */
extern const unsigned int SCI_Q_ADAPTER_SERIAL_NUMBER;
extern const unsigned int SCI_Q_ADAPTER_CARD_TYPE;
extern const unsigned int SCI_Q_ADAPTER_NODEID;
extern const unsigned int SCI_Q_ADAPTER_CONFIGURED;
extern const unsigned int SCI_Q_ADAPTER_DMA_MTU;
extern const unsigned int SCI_Q_ADAPTER_MCAST_MAX_GROUPS;
extern const unsigned int SCI_Q_ADAPTER_BDF;
extern const unsigned int SCI_Q_ADAPTER_NUMBER_OF_LINKS;
extern const unsigned int SCI_Q_ADAPTER_LINK_OPERATIONAL;
extern const unsigned int SCI_Q_ADAPTER_LINK_WIDTH;
extern const unsigned int SCI_Q_ADAPTER_LINK_SPEED;
extern const unsigned int SCI_Q_ADAPTER_LINK_UPTIME;
extern const unsigned int SCI_Q_ADAPTER_LINK_DOWNTIME;
extern const unsigned int SCI_Q_ADAPTER_LINK_CABLE_INSERTED;
extern const unsigned int SCI_Q_ADAPTER_LINK_ENABLED;
extern const unsigned int SCI_Q_ADAPTER_LINK_PARTNER_PORT_NO;
extern const unsigned int SCI_Q_ADAPTER_DMA_SIZE_ALIGNMENT;
extern const unsigned int SCI_Q_ADAPTER_DMA_OFFSET_ALIGNMENT;
extern const unsigned int SCI_Q_ADAPTER_SUGGESTED_MIN_DMA_SIZE;
extern const unsigned int SCI_Q_ADAPTER_SUGGESTED_MIN_BLOCK_SIZE;
extern const unsigned int SCI_Q_ADAPTER_NUMBER_OF_STREAMS;
extern const unsigned int SCI_Q_ADAPTER_STREAM_BUFFER_SIZE;
extern const unsigned int SCI_Q_ADAPTER_HW_LINK_STATUS_IS_OK;
extern const unsigned int SCI_Q_ADAPTER_NUMBER;
extern const unsigned int SCI_Q_ADAPTER_INSTANCE_NUMBER;
extern const unsigned int SCI_Q_ADAPTER_FIRMWARE_OK;
extern const unsigned int SCI_Q_ADAPTER_CONNECTED_TO_SWITCH;
extern const unsigned int SCI_Q_ADAPTER_LOCAL_SWITCH_TYPE;
extern const unsigned int SCI_Q_ADAPTER_LOCAL_SWITCH_PORT_NUMBER;
extern const unsigned int SCI_Q_ADAPTER_CONNECTED_TO_EXPECTED_SWITCH_PORT;
extern const unsigned int SCI_Q_ADAPTER_ATT_PAGE_SIZE;
extern const unsigned int SCI_Q_ADAPTER_ATT_NUMBER_OF_ENTRIES;
extern const unsigned int SCI_Q_ADAPTER_ATT_AVAILABLE_ENTRIES;
extern const unsigned int SCI_Q_ADAPTER_PHYS_MEM_NODEID;
extern const unsigned int SCI_Q_ADAPTER_PHYS_MBX_NODEID;
extern const unsigned int SCI_Q_ADAPTER_PHYS_LINK_PORT_NODEID;
extern const unsigned int SCI_Q_ADAPTER_SCI_LINK_FREQUENCY;
extern const unsigned int SCI_Q_ADAPTER_B_LINK_FREQUENCY;
extern const unsigned int SCI_Q_ADAPTER_IO_BUS_FREQUENCY;

/* --- Constants: queries of the system --- */
extern const unsigned int SCI_Q_SYSTEM_CPU_CACHE_LINE_SIZE;
extern const unsigned int SCI_Q_SYSTEM_HOSTBRIDGE;
extern const unsigned int SCI_Q_SYSTEM_WRITE_POSTING_ENABLED;
extern const unsigned int SCI_Q_SYSTEM_WRITE_COMBINING_ENABLED;

/* --- Constants: queries of DMA, segments, maps and devices --- */
extern const unsigned int SCI_Q_DMA_AVAILABLE;
extern const unsigned int SCI_Q_DMA_CAPABILITIES;
extern const unsigned int SCI_Q_LOCAL_SEGMENT_IOADDR;
extern const unsigned int SCI_Q_LOCAL_SEGMENT_PHYS_ADDR;
extern const unsigned int SCI_Q_LOCAL_SEGMENT_VIRTUAL_KERNEL_ADDR;
extern const unsigned int SCI_Q_REMOTE_SEGMENT_IOADDR;
extern const unsigned int SCI_Q_MAP_MAPPED_TO_LOCAL_TARGET;
extern const unsigned int SCI_Q_MAP_IOADDR;
extern const unsigned int SCI_Q_MAP_PHYS_ADDR;
extern const unsigned int SCI_Q_MAP_QUERY_REMOTE_MAPPED_TO_LOCAL_TARGET;
extern const unsigned int SCI_Q_DEVICE_INFO;

/* --- Library and nodes --- */
/* Prepares the library for this process; to be called first. Nests with SCITerminate. */
void SCIInitialize(unsigned int flags, sci_error_t *error);

/* Ends the last SCIInitialize; what is still open is closed. */
void SCITerminate(void);

/* A descriptor: what all other objects belong to, any number of each kind. */
void SCIOpen(sci_desc_t *sd, unsigned int flags, sci_error_t *error);

/* SCI_ERR_BUSY while objects of the descriptor exist. */
void SCIClose(sci_desc_t sd, unsigned int flags, sci_error_t *error);

/* What an error means, in English; never NULL. */
const char *SCIGetErrorString(sci_error_t code);

/* The id of this host's node. */
void SCIGetLocalNodeId(unsigned int adapterNo, unsigned int *nodeId, unsigned int flags,
		sci_error_t *error);

/* The node ids behind a name (a configured node's address, a host's name, or a number); the
   unused entries of the list are 0. */
void SCIGetNodeIdByAdapterName(char *adapterName, dis_nodeId_list_t *nodeIdList,
		dis_virt_adapter_t *type, unsigned int flags, sci_error_t *error);
void SCIGetNodeInfoByAdapterName(char *adapterName, unsigned int *adapterNo,
		dis_nodeId_list_t *nodeIdList, dis_virt_adapter_t *type, unsigned int flags,
		sci_error_t *error);
const char *SCIGetAdapterTypeString(unsigned int type);
const char *SCIGetAdapterFamilyString(unsigned int family);

/* Not 0 if the node can be reached; else error says why not. SCI_LOCAL_HOST: one's own node. */
int SCIProbeNode(sci_desc_t sd, unsigned int localAdapterNo, unsigned int nodeId,
		unsigned int flags, sci_error_t *error);

/* Asks for what `command` (SCI_Q_...) says; `data` is a structure sci_query_... of its name. */
void SCIQuery(unsigned int command, void *data, unsigned int flags, sci_error_t *error);

/* --- Local segments --- */
/*
 * Memory that others can be given. Flags: SCI_FLAG_USE_CALLBACK; SCI_FLAG_AUTO_ID, the library
 * chooses the id (SCIGetLocalSegmentId); SCI_FLAG_EMPTY, memory comes by
 * SCIRegisterSegmentMemory; SCI_FLAG_PRIVATE, nobody ever connects to it; SCI_FLAG_BROADCAST, a
 * member of the group `segmentId`, whose memory is its own: what others store through a map of the
 * group reaches it, and what is stored through the map of the local segment reaches nobody else.
 * SCI_FLAG_BROADCAST_SHARED with it, of this library's own: all members of this host have one
 * memory, so maps of it need no library to store; no other host can have members. All members of a
 * group say the same, otherwise SCI_ERR_ILLEGAL_OPERATION.
 */
void SCICreateSegment(sci_desc_t sd, sci_local_segment_t *segment, unsigned int segmentId,
		size_t size, sci_cb_local_segment_t callback, void *callbackArg,
		unsigned int flags, sci_error_t *error);

/* Makes the segment ready for an adapter. Flags: SCI_FLAG_DMA_SOURCE_ONLY, no one will connect. */
void SCIPrepareSegment(sci_local_segment_t segment, unsigned int localAdapterNo,
		unsigned int flags, sci_error_t *error);

/* From now on others can connect to it. */
void SCISetSegmentAvailable(sci_local_segment_t segment, unsigned int localAdapterNo,
		unsigned int flags, sci_error_t *error);

/* From now on nobody can. Flags: SCI_FLAG_FORCE_DISCONNECT, those who are connected lose it;
   SCI_FLAG_NOTIFY, they are told. */
void SCISetSegmentUnavailable(sci_local_segment_t segment, unsigned int localAdapterNo,
		unsigned int flags, sci_error_t *error);

/* SCI_ERR_BUSY while it is mapped, here or elsewhere, but with SCI_FLAG_FORCE_REMOVE those who are
   connected lose it. */
void SCIRemoveSegment(sci_local_segment_t segment, unsigned int flags, sci_error_t *error);

/* Flags: SCI_FLAG_READONLY_MAP; SCI_FLAG_FIXED_MAP_ADDR, at `addr`, a page's address where
   nothing is mapped. */
void *SCIMapLocalSegment(sci_local_segment_t segment, sci_map_t *map, size_t offset, size_t size,
		void *addr, unsigned int flags, sci_error_t *error);

size_t SCIGetLocalSegmentSize(sci_local_segment_t segment);
unsigned int SCIGetLocalSegmentId(sci_local_segment_t segment);

/* Waits for the segment's next event, unless it has a callback. */
sci_segment_cb_reason_t SCIWaitForLocalSegmentEvent(sci_local_segment_t segment,
		unsigned int *sourceNodeId, unsigned int *localAdapterNo, unsigned int timeout,
		unsigned int flags, sci_error_t *error);

/* Lets other processes of this node attach to the segment, also to a private one.
   SCI_ERR_ILLEGAL_OPERATION for an empty one. */
void SCIShareSegment(sci_local_segment_t segment, unsigned int flags, sci_error_t *error);

/* Makes a segment that another process of this node has shared one's own too. */
void SCIAttachLocalSegment(sci_desc_t sd, sci_local_segment_t *segment, unsigned int segmentId,
		size_t *size, sci_cb_local_segment_t callback, void *callbackArg,
		unsigned int flags, sci_error_t *error);

/* Physical memory: SCI_ERR_NOT_SUPPORTED. */
void SCIAttachPhysicalMemory(sci_ioaddr_t ioaddress, void *address, unsigned int busNo,
		size_t size, sci_local_segment_t segment, unsigned int flags,
		sci_error_t *error);

/* The program's own memory, whole pages, becomes that of a segment made with SCI_FLAG_EMPTY. */
void SCIRegisterSegmentMemory(void *address, size_t size, sci_local_segment_t segment,
		unsigned int flags, sci_error_t *error);

/* --- Remote segments and maps --- */
/*
 * Connects to a segment of a node, its own included. SCI_ERR_NO_SUCH_SEGMENT at once if there is
 * none of this id that is available. Flags: SCI_FLAG_USE_CALLBACK; SCI_FLAG_ASYNCHRONOUS_CONNECT,
 * returns at once and connects when it can (event SCI_CB_CONNECT); SCI_FLAG_BROADCAST, the
 * segments of a group (node DIS_BROADCAST_NODEID_GROUP_ALL).
 */
void SCIConnectSegment(sci_desc_t sd, sci_remote_segment_t *segment, unsigned int nodeId,
		unsigned int segmentId, unsigned int localAdapterNo,
		sci_cb_remote_segment_t callback, void *callbackArg, unsigned int timeout,
		unsigned int flags, sci_error_t *error);

/* SCI_ERR_BUSY while it is mapped. */
void SCIDisconnectSegment(sci_remote_segment_t segment, unsigned int flags, sci_error_t *error);

size_t SCIGetRemoteSegmentSize(sci_remote_segment_t segment);
unsigned int SCIGetRemoteSegmentId(sci_remote_segment_t segment);
unsigned int SCIGetRemoteSegmentNodeId(sci_remote_segment_t segment);

/* Waits for the segment's next event, unless it has a callback. `status` says more of it. */
sci_segment_cb_reason_t SCIWaitForRemoteSegmentEvent(sci_remote_segment_t segment,
		sci_error_t *status, unsigned int timeout, unsigned int flags,
		sci_error_t *error);

/* As SCIMapLocalSegment. The memory stays mapped when its owner goes; SCICheckSequence tells. */
volatile void *SCIMapRemoteSegment(sci_remote_segment_t segment, sci_map_t *map, size_t offset,
		size_t size, void *addr, unsigned int flags, sci_error_t *error);

/* SCI_ERR_BUSY while a block is transferred from or to it. A sequence of it may end later. */
void SCIUnmapSegment(sci_map_t map, unsigned int flags, sci_error_t *error);

volatile void *SCIGetMapPointer(sci_map_t map);
/* There are no physical addresses: the map's offset in its segment. */
sci_ioaddr_t SCIGetMapPhysAddr(sci_map_t map);

/* Memory by SCI address: SCI_ERR_NOT_SUPPORTED. */
void SCIConnectSCISpace(sci_desc_t sd, unsigned int localAdapterNo,
		sci_remote_segment_t *segment, sci_address_t address, size_t size,
		unsigned int flags, sci_error_t *error);

/* --- Copies and order --- */
/* Copies to a map, or with SCI_FLAG_BLOCK_READ from it. With SCI_FLAG_ERROR_CHECK
   SCI_ERR_TRANSFER_FAILED tells that the memory's owner has gone. `sequence` may be NULL. */
void SCIMemCpy(sci_sequence_t sequence, void *memAddr, sci_map_t remoteMap, size_t remoteOffset,
		size_t size, unsigned int flags, sci_error_t *error);

/* Copies to any address inside a map. */
void SCIMemWrite(void *memAddr, volatile void *remoteAddr, size_t size, unsigned int flags,
		sci_error_t *error);

/* As SCIMemCpy without a sequence; of the interface's first version. */
void SCIMemCopy(void *memAddr, sci_map_t remoteMap, size_t remoteOffset, size_t size,
		unsigned int flags, sci_error_t *error);

/* The same bytes to two maps. */
void SCIMemCpy_dual(sci_sequence_t sequence, void *memAddr, sci_map_t firstMap,
		size_t firstOffset, sci_map_t secondMap, size_t secondOffset, size_t size,
		unsigned int flags, sci_error_t *error);

/* Copies between maps, at once or by the DMA engine; of the interface's first version. */
void SCITransferBlock(sci_map_t sourceMap, size_t sourceOffset, sci_map_t destinationMap,
		size_t destinationOffset, size_t size, unsigned int flags, sci_error_t *error);
void SCITransferBlockAsync(sci_map_t sourceMap, size_t sourceOffset, sci_map_t destinationMap,
		size_t destinationOffset, size_t size, sci_block_transfer_t *block,
		sci_cb_block_transfer_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);
void SCIWaitForBlockTransfer(sci_block_transfer_t block, unsigned int timeout,
		unsigned int flags, sci_error_t *error);
void SCIAbortBlockTransfer(sci_block_transfer_t block, unsigned int flags, sci_error_t *error);

/* A sequence tells whether what was stored through a map since it was started has arrived. */
void SCICreateMapSequence(sci_map_t map, sci_sequence_t *sequence, unsigned int flags,
		sci_error_t *error);
void SCIRemoveSequence(sci_sequence_t sequence, unsigned int flags, sci_error_t *error);
sci_sequence_status_t SCIStartSequence(sci_sequence_t sequence, unsigned int flags,
		sci_error_t *error);
/* Flags: SCI_FLAG_NO_FLUSH, SCI_FLAG_NO_STORE_BARRIER. */
sci_sequence_status_t SCICheckSequence(sci_sequence_t sequence, unsigned int flags,
		sci_error_t *error);

/* All stores before are visible to others before any store after. `sequence` may be NULL. */
void SCIStoreBarrier(sci_sequence_t sequence, unsigned int flags);
void SCIFlush(sci_sequence_t sequence, unsigned int flags);
void SCIFlushReadBuffers(sci_sequence_t sequence);
/* Processors here share their caches: an order of loads and stores. `map` may be NULL. */
void SCICacheSync(sci_map_t map, void *addr, size_t length, unsigned int flags,
		sci_error_t *error);

/* The number of the copy function; there is one, and any number chooses it. */
unsigned int GetSciMemCopyFunction(void);
void SetSciMemCopyFunction(unsigned int number);

/* --- DMA --- */
/* A queue of transfers, of which `maxEntries` can be under way. */
void SCICreateDMAQueue(sci_desc_t sd, sci_dma_queue_t *dq, unsigned int localAdapterNo,
		unsigned int maxEntries, unsigned int flags, sci_error_t *error);
/* SCI_ERR_BUSY while transfers are under way. */
void SCIRemoveDMAQueue(sci_dma_queue_t dq, unsigned int flags, sci_error_t *error);
/* Ends what is under way; nothing is stored after it has returned. */
void SCIAbortDMAQueue(sci_dma_queue_t dq, unsigned int flags, sci_error_t *error);
sci_dma_queue_state_t SCIDMAQueueState(sci_dma_queue_t dq);
/* Waits for all transfers of the queue, unless they have a callback. Returns how they have ended;
   SCI_ERR_TRANSFER_FAILED if one has failed. */
sci_dma_queue_state_t SCIWaitForDMAQueue(sci_dma_queue_t dq, unsigned int timeout,
		unsigned int flags, sci_error_t *error);

/*
 * Transfers from a local segment to a remote one, or with SCI_FLAG_DMA_READ to the local one.
 * Other flags: SCI_FLAG_DMA_WAIT, returns when it is done; SCI_FLAG_USE_CALLBACK. Those that
 * choose an engine are accepted; there is one.
 */
void SCIStartDmaTransfer(sci_dma_queue_t dq, sci_local_segment_t localSegment,
		sci_remote_segment_t remoteSegment, size_t localOffset, size_t size,
		size_t remoteOffset, sci_cb_dma_t callback, void *callbackArg,
		unsigned int flags, sci_error_t *error);
/* From or to any memory of the process. */
void SCIStartDmaTransferMem(sci_dma_queue_t dq, void *localAddress,
		sci_remote_segment_t remoteSegment, size_t size, size_t remoteOffset,
		sci_cb_dma_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);
/* As many pieces as the vector has, at most DIS_DMA_MAX_VECLEN. */
void SCIStartDmaTransferVec(sci_dma_queue_t dq, sci_local_segment_t localSegment,
		sci_remote_segment_t remoteSegment, size_t vecLength, dis_dma_vec_t *disDmaVec,
		sci_cb_dma_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);
void DISStartDmaTransfer(sci_dma_queue_t dq, sci_local_segment_t localSegment,
		sci_remote_segment_t remoteSegment, size_t localOffset, size_t size,
		size_t remoteOffset, sci_cb_dma_t callback, void *callbackArg,
		unsigned int flags, sci_error_t *error);
void DISStartDmaTransferVec(sci_dma_queue_t dq, sci_local_segment_t localSegment,
		sci_remote_segment_t remoteSegment, size_t vecLength, dis_dma_vec_t *disDmaVec,
		sci_cb_dma_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);

/* Channels of a DMA engine. They can be had, assigned and returned; all lead to one engine. */
void SCIRequestDMAChannel(sci_desc_t sd, sci_dma_channel_t *channel, unsigned int localAdapterNo,
		sci_dma_type_t type, unsigned int channelId, unsigned int flags,
		sci_error_t *error);
void SCIReturnDMAChannel(sci_dma_channel_t channel, sci_error_t *error);
void SCIAssignDMAChannel(sci_dma_channel_t channel, sci_dma_queue_t dq, unsigned int flags,
		sci_error_t *error);
void SCIPrepareLocalSegmentForDMA(sci_dma_channel_t channel, sci_local_segment_t segment,
		unsigned int flags, sci_error_t *error);
void SCIUnprepareLocalSegmentForDMA(sci_dma_channel_t channel, sci_local_segment_t segment,
		unsigned int flags, sci_error_t *error);
void SCIPrepareRemoteSegmentForDMA(sci_dma_channel_t channel, sci_remote_segment_t segment,
		unsigned int flags, sci_error_t *error);
void SCIUnprepareRemoteSegmentForDMA(sci_dma_channel_t channel, sci_remote_segment_t segment,
		unsigned int flags, sci_error_t *error);

/* Of the interface's first version: entries are gathered, then posted together. Mind the order
   of the offsets and the size. Flags: SCI_FLAG_DMA_READ; SCI_FLAG_DMA_POST, posts at once;
   SCI_FLAG_DMA_WAIT, also waits; SCI_FLAG_DMA_RESET, then resets. */
sci_dma_queue_state_t SCIEnqueueDMATransfer(sci_dma_queue_t dq, sci_local_segment_t localSegment,
		sci_remote_segment_t remoteSegment, unsigned int localOffset,
		unsigned int remoteOffset, unsigned int size, unsigned int flags,
		sci_error_t *error);
void SCIPostDMAQueue(sci_dma_queue_t dq, sci_cb_dma_t callback, void *callbackArg,
		unsigned int flags, sci_error_t *error);
void SCIResetDMAQueue(sci_dma_queue_t dq, unsigned int flags, sci_error_t *error);
/* Physical addresses: SCI_ERR_NOT_SUPPORTED. */
void SCIphDmaEnqueue(sci_dma_queue_t dq, unsigned int size, sci_ioaddr_t localBusAddress,
		unsigned int remoteNodeId, unsigned int remoteHighAddress,
		unsigned int remoteLowAddress, unsigned int flags, sci_error_t *error);
void SCIphDmaStart(sci_dma_queue_t dq, sci_cb_dma_t callback, void *callbackArg,
		unsigned int flags, sci_error_t *error);

/* --- Interrupts --- */
/*
 * Flags: SCI_FLAG_USE_CALLBACK; SCI_FLAG_FIXED_INTNO, the number is *interruptNo, else it is
 * chosen and written there; SCI_FLAG_SHARED_INT, several may create the same number, and all get
 * it; SCI_FLAG_COUNTING_INT, each trigger is one event, else those that come before one is seen
 * are one.
 */
void SCICreateInterrupt(sci_desc_t sd, sci_local_interrupt_t *interrupt,
		unsigned int localAdapterNo, unsigned int *interruptNo,
		sci_cb_interrupt_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);
/* As SCICreateInterrupt; the name is for people. */
void SCICreateNamedInterrupt(sci_desc_t sd, sci_local_interrupt_t *interrupt,
		unsigned int localAdapterNo, unsigned int *interruptNo, const char *name,
		sci_cb_interrupt_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);
void SCIRemoveInterrupt(sci_local_interrupt_t interrupt, unsigned int flags, sci_error_t *error);
void SCIWaitForInterrupt(sci_local_interrupt_t interrupt, unsigned int timeout,
		unsigned int flags, sci_error_t *error);
void SCIConnectInterrupt(sci_desc_t sd, sci_remote_interrupt_t *interrupt, unsigned int nodeId,
		unsigned int localAdapterNo, unsigned int interruptNo, unsigned int timeout,
		unsigned int flags, sci_error_t *error);
void SCIDisconnectInterrupt(sci_remote_interrupt_t interrupt, unsigned int flags,
		sci_error_t *error);
void SCITriggerInterrupt(sci_remote_interrupt_t interrupt, unsigned int flags,
		sci_error_t *error);

/* Interrupts that carry data. Flags as above, without SCI_FLAG_COUNTING_INT: each is an event. */
void SCICreateDataInterrupt(sci_desc_t sd, sci_local_data_interrupt_t *interrupt,
		unsigned int localAdapterNo, unsigned int *interruptNo,
		sci_cb_data_interrupt_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);
void SCIRemoveDataInterrupt(sci_local_data_interrupt_t interrupt, unsigned int flags,
		sci_error_t *error);
/* *length is the room at `data`, then what came. SCI_ERR_NOSPC: it needs *length; nothing is
   taken. */
void SCIWaitForDataInterrupt(sci_local_data_interrupt_t interrupt, void *data,
		unsigned int *length, unsigned int timeout, unsigned int flags,
		sci_error_t *error);
void SCIConnectDataInterrupt(sci_desc_t sd, sci_remote_data_interrupt_t *interrupt,
		unsigned int nodeId, unsigned int localAdapterNo, unsigned int interruptNo,
		unsigned int timeout, unsigned int flags, sci_error_t *error);
void SCIDisconnectDataInterrupt(sci_remote_data_interrupt_t interrupt, unsigned int flags,
		sci_error_t *error);
/* SCI_ERR_NOSPC while the other side has not taken as many as it has room for. */
void SCITriggerDataInterrupt(sci_remote_data_interrupt_t interrupt, void *data,
		unsigned int length, unsigned int flags, sci_error_t *error);

/*
 * Interrupts by a store to memory. The flag is the 32-bit word at the offset, which the library
 * writes to as well; it is found out that another value was stored there, within a millisecond. It
 * is disabled at first, and again by each interrupt. Enabling it gives
 * SCI_ERR_COND_INT_RACE_PROBLEM if there was a store since the last interrupt: look at what it is
 * about, and try again. Several stores in a row may count as one.
 */
void SCIRegisterInterruptFlag(unsigned int localAdapterNo, sci_local_interrupt_t *interrupt,
		sci_local_segment_t segment, unsigned int offset, sci_cb_interrupt_t callback,
		void *callbackArg, unsigned int flags, sci_error_t *error);
void SCIEnableConditionalInterrupt(sci_local_interrupt_t interrupt, unsigned int flags,
		sci_error_t *error);
void SCIDisableConditionalInterrupt(sci_local_interrupt_t interrupt, unsigned int flags,
		sci_error_t *error);
void SCIGetConditionalInterruptTrigCounter(sci_local_interrupt_t interrupt,
		unsigned int *interruptTrigCounter, unsigned int flags, sci_error_t *error);

/* --- What needs hardware: SCI_ERR_NOT_SUPPORTED --- */
unsigned int SCIGetCSRRegister(sci_desc_t sd, unsigned int localAdapterNo,
		unsigned int SCINodeId, unsigned int CSROffset, unsigned int flags,
		sci_error_t *error);
void SCISetCSRRegister(sci_desc_t sd, unsigned int localAdapterNo, unsigned int SCINodeId,
		unsigned int CSROffset, unsigned int CSRValue, unsigned int flags,
		sci_error_t *error);
unsigned int SCIGetLocalCSR(sci_desc_t sd, unsigned int localAdapterNo, unsigned int CSROffset,
		unsigned int flags, sci_error_t *error);
void SCISetLocalCSR(sci_desc_t sd, unsigned int localAdapterNo, unsigned int CSROffset,
		unsigned int CSRValue, unsigned int flags, sci_error_t *error);

/* Lent devices. There are none: the list is empty, and no device can be borrowed. */
void SCIBorrowDevice(sci_desc_t sd, sci_smartio_device_t *device, uint64_t fdid,
		unsigned int flags, sci_error_t *error);
void SCIReturnDevice(sci_smartio_device_t device, unsigned int flags, sci_error_t *error);
void SCIReleaseExclusiveBorrow(sci_smartio_device_t device, unsigned int flags,
		sci_error_t *error);
uint64_t SCIGetFabricDeviceId(sci_smartio_device_t device);
size_t SCIGetDeviceList(sci_desc_t sd, uint64_t *fdids, size_t max,
		sci_smartio_device_info_t *filter, unsigned int flags, sci_error_t *error);
void SCIConnectDeviceSegment(sci_smartio_device_t device, sci_remote_segment_t *segment,
		unsigned int segmentId, unsigned int memType, sci_cb_remote_segment_t callback,
		void *callbackArg, unsigned int flags, sci_error_t *error);
void SCIConnectDeviceSegmentPath(sci_smartio_device_t device, sci_remote_segment_t *segment,
		unsigned int segmentId, unsigned int memType, unsigned int localAdapterNo,
		sci_cb_remote_segment_t callback, void *callbackArg, unsigned int flags,
		sci_error_t *error);
void SCICreateDeviceSegment(sci_smartio_device_t device, unsigned int segmentId, size_t size,
		unsigned int memType, unsigned int accessHints, unsigned int flags,
		sci_error_t *error);
void SCIMapLocalSegmentForDevice(sci_local_segment_t segment, unsigned int localAdapterNo,
		sci_smartio_device_t device, sci_ioaddr_t *ioaddress, size_t offset, size_t size,
		unsigned int flags, sci_error_t *error);
void SCIUnmapLocalSegmentForDevice(sci_local_segment_t segment, unsigned int localAdapterNo,
		sci_smartio_device_t device, unsigned int flags, sci_error_t *error);
void SCIMapRemoteSegmentForDevice(sci_remote_segment_t segment, sci_smartio_device_t device,
		sci_ioaddr_t *ioaddress, size_t offset, size_t size, unsigned int flags,
		sci_error_t *error);
void SCIUnmapRemoteSegmentForDevice(sci_remote_segment_t segment, sci_smartio_device_t device,
		unsigned int flags, sci_error_t *error);
void SCIRegisterPCIeRequester(sci_desc_t sd, unsigned int localAdapterNo, unsigned int bus,
		unsigned int devfn, unsigned int flags, sci_error_t *error);
void SCIUnregisterPCIeRequester(sci_desc_t sd, unsigned int localAdapterNo, unsigned int bus,
		unsigned int devfn, unsigned int flags, sci_error_t *error);
/* As older versions of the interface call some of these. */
void SCIConnectDeviceMemory(sci_desc_t sd, sci_remote_segment_t *segment,
		unsigned int localAdapterNo, sci_smartio_device_t device, unsigned int segmentId,
		unsigned int reserved, unsigned int flags, sci_error_t *error);
void SCIConnectDeviceBar(sci_desc_t sd, sci_remote_segment_t *segment, uint64_t fdid,
		unsigned int bar, unsigned int localAdapterNo, unsigned int flags,
		sci_error_t *error);
void SCIMapSegmentForDevice(sci_local_segment_t segment, sci_smartio_device_t device,
		unsigned int localAdapterNo, sci_ioaddr_t *ioaddress, unsigned int flags,
		sci_error_t *error);
void SCIUnmapSegmentForDevice(sci_local_segment_t segment, sci_smartio_device_t device,
		unsigned int localAdapterNo, unsigned int flags, sci_error_t *error);

#ifdef __cplusplus
}
#endif

#endif
