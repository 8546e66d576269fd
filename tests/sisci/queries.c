/* Queries, nodes by name, and what needs hardware. */
#include "check.h"

#include <unistd.h>

static unsigned int ask_adapter(unsigned int subcommand, sci_error_t want)
{
	unsigned int value = 0xdeadbeef;
	sci_query_adapter_t query;

	memset(&query, 0, sizeof(query));
	query.subcommand = subcommand;
	query.data = &value;
	REFUSED(want, SCIQuery, SCI_Q_ADAPTER, &query, NO_FLAGS);
	return value;
}

static void strings(void)
{
	char text[64];
	sci_query_string_t query = {text, sizeof(text)};

	DO(SCIInitialize, NO_FLAGS);
	DO(SCIQuery, SCI_Q_API, &query, NO_FLAGS);
	EXPECT(strlen(text) > 0);
	DO(SCIQuery, SCI_Q_VENDORID, &query, NO_FLAGS);
	EXPECT(!strcmp(text, "Causeway"));
	DO(SCIQuery, SCI_Q_SISCI_DRIVER_VERSION, &query, NO_FLAGS);
	query.length = 4;
	memset(text, 'x', sizeof(text));
	DO(SCIQuery, SCI_Q_VENDORID, &query, NO_FLAGS);
	EXPECT(!strcmp(text, "Cau") && text[4] == 'x');
	query.length = 0;
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIQuery, SCI_Q_VENDORID, &query, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIQuery, SCI_Q_VENDORID, NULL, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_QUERY, SCIQuery, 9999, &query, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIQuery, SCI_Q_VENDORID, &query, 1);
}

static void adapters(void)
{
	const unsigned int known[] = {SCI_Q_ADAPTER_SERIAL_NUMBER, SCI_Q_ADAPTER_CARD_TYPE,
		SCI_Q_ADAPTER_CONFIGURED, SCI_Q_ADAPTER_DMA_MTU, SCI_Q_ADAPTER_BDF,
		SCI_Q_ADAPTER_LINK_WIDTH, SCI_Q_ADAPTER_LINK_SPEED, SCI_Q_ADAPTER_LINK_UPTIME,
		SCI_Q_ADAPTER_LINK_DOWNTIME, SCI_Q_ADAPTER_LINK_CABLE_INSERTED,
		SCI_Q_ADAPTER_LINK_ENABLED, SCI_Q_ADAPTER_LINK_PARTNER_PORT_NO,
		SCI_Q_ADAPTER_DMA_SIZE_ALIGNMENT, SCI_Q_ADAPTER_DMA_OFFSET_ALIGNMENT,
		SCI_Q_ADAPTER_SUGGESTED_MIN_DMA_SIZE, SCI_Q_ADAPTER_SUGGESTED_MIN_BLOCK_SIZE,
		SCI_Q_ADAPTER_NUMBER_OF_STREAMS, SCI_Q_ADAPTER_STREAM_BUFFER_SIZE,
		SCI_Q_ADAPTER_HW_LINK_STATUS_IS_OK, SCI_Q_ADAPTER_NUMBER,
		SCI_Q_ADAPTER_INSTANCE_NUMBER, SCI_Q_ADAPTER_FIRMWARE_OK,
		SCI_Q_ADAPTER_CONNECTED_TO_SWITCH, SCI_Q_ADAPTER_LOCAL_SWITCH_TYPE,
		SCI_Q_ADAPTER_LOCAL_SWITCH_PORT_NUMBER,
		SCI_Q_ADAPTER_CONNECTED_TO_EXPECTED_SWITCH_PORT, SCI_Q_ADAPTER_ATT_PAGE_SIZE,
		SCI_Q_ADAPTER_ATT_NUMBER_OF_ENTRIES, SCI_Q_ADAPTER_ATT_AVAILABLE_ENTRIES,
		SCI_Q_ADAPTER_PHYS_MEM_NODEID, SCI_Q_ADAPTER_PHYS_MBX_NODEID,
		SCI_Q_ADAPTER_PHYS_LINK_PORT_NODEID, SCI_Q_ADAPTER_SCI_LINK_FREQUENCY,
		SCI_Q_ADAPTER_B_LINK_FREQUENCY, SCI_Q_ADAPTER_IO_BUS_FREQUENCY};
	sci_query_adapter_t query = {1, 0, SCI_Q_ADAPTER_NODEID, NULL};
	sci_query_system_t system = {SCI_Q_SYSTEM_CPU_CACHE_LINE_SIZE, NULL};
	sci_query_dma_t dma = {0, SCI_Q_DMA_AVAILABLE, NULL};
	sci_dma_capabilities_t capabilities;
	unsigned int value = 0;

	/* No descriptor is needed. */
	DO(SCIInitialize, NO_FLAGS);
	EXPECT(ask_adapter(SCI_Q_ADAPTER_NODEID, SCI_ERR_OK) == own_node());
	EXPECT(ask_adapter(SCI_Q_ADAPTER_NUMBER_OF_LINKS, SCI_ERR_OK) == 1);
	EXPECT(ask_adapter(SCI_Q_ADAPTER_LINK_OPERATIONAL, SCI_ERR_OK) == 1);
	EXPECT(ask_adapter(SCI_Q_ADAPTER_MCAST_MAX_GROUPS, SCI_ERR_OK) >= 4);
	for (size_t i = 0; i < COUNT(known); i++)
		EXPECT(ask_adapter(known[i], SCI_ERR_OK) != 0xdeadbeef);
	ask_adapter(12345, SCI_ERR_ILLEGAL_QUERY);
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCIQuery, SCI_Q_ADAPTER, &query, NO_FLAGS);
	query.localAdapterNo = 0;
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIQuery, SCI_Q_ADAPTER, &query, NO_FLAGS);
	query.subcommand = SCI_Q_ADAPTER_LINK_OPERATIONAL;
	query.portNo = 1;
	query.data = &value;
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIQuery, SCI_Q_ADAPTER, &query, NO_FLAGS);
	system.data = &value;
	DO(SCIQuery, SCI_Q_SYSTEM, &system, NO_FLAGS);
	EXPECT(value == 64);
	system.subcommand = 1;
	REFUSED(SCI_ERR_ILLEGAL_QUERY, SCIQuery, SCI_Q_SYSTEM, &system, NO_FLAGS);
	dma.data = &value;
	DO(SCIQuery, SCI_Q_DMA, &dma, SCI_FLAG_DMA_SYSDMA);
	EXPECT(value == 1);
	dma.subcommand = SCI_Q_DMA_CAPABILITIES;
	dma.data = &capabilities;
	DO(SCIQuery, SCI_Q_DMA, &dma, SCI_FLAG_DMA_ADAPTER);
	EXPECT(capabilities.num_channels == 1);
	EXPECT(capabilities.max_vector_length == DIS_DMA_MAX_VECLEN);
	dma.subcommand = 5;
	REFUSED(SCI_ERR_ILLEGAL_QUERY, SCIQuery, SCI_Q_DMA, &dma, NO_FLAGS);
}

static void objects(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t map;
	sci_query_local_segment_t local_query = {NULL, SCI_Q_LOCAL_SEGMENT_IOADDR, {7}};
	sci_query_remote_segment_t remote_query = {NULL, SCI_Q_REMOTE_SEGMENT_IOADDR, {7}};
	sci_query_map_t map_query = {NULL, SCI_Q_MAP_MAPPED_TO_LOCAL_TARGET, 7};
	sci_smartio_query_device_t device = {1, SCI_Q_DEVICE_INFO, NULL};

	offer(sd, &segment, &map, 500, PAGE);
	connect_to(sd, &remote, own_node(), 500);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIQuery, SCI_Q_LOCAL_SEGMENT, &local_query, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIQuery, SCI_Q_REMOTE_SEGMENT, &remote_query, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIQuery, SCI_Q_MAP, &map_query, NO_FLAGS);
	local_query.segment = segment;
	DO(SCIQuery, SCI_Q_LOCAL_SEGMENT, &local_query, NO_FLAGS);
	EXPECT(local_query.data.ioaddr == 0);
	local_query.subcommand = 1;
	REFUSED(SCI_ERR_ILLEGAL_QUERY, SCIQuery, SCI_Q_LOCAL_SEGMENT, &local_query, NO_FLAGS);
	remote_query.segment = remote;
	DO(SCIQuery, SCI_Q_REMOTE_SEGMENT, &remote_query, NO_FLAGS);
	map_query.map = map;
	DO(SCIQuery, SCI_Q_MAP, &map_query, NO_FLAGS);
	EXPECT(map_query.data == 1);
	/* As some programs ask. */
	map_query.subcommand = SCI_Q_MAP_IOADDR;
	DO(SCIQuery, SCI_Q_REMOTE_SEGMENT, &map_query, NO_FLAGS);
	EXPECT(map_query.data == 0);
	REFUSED(SCI_ERR_NO_SUCH_FDID, SCIQuery, SCI_Q_DEVICE, &device, NO_FLAGS);
}

static void names(void)
{
	dis_nodeId_list_t nodes;
	dis_virt_adapter_t type;
	unsigned int list[DIS_MAX_NSCIS] = {7}, node;
	char host[256] = "", number[16];

	DO(SCIInitialize, NO_FLAGS);
	gethostname(host, sizeof(host) - 1);
	DO(SCIGetNodeIdByAdapterName, host, &nodes, &type, NO_FLAGS);
	EXPECT(nodes[0] == own_node() && nodes[1] == 0);
	EXPECT(strlen(SCIGetAdapterTypeString(type)) > 0 && SCIGetAdapterTypeString(999));
	EXPECT(SCIGetAdapterFamilyString(0));
	snprintf(number, sizeof(number), "%u", own_node());
	DO(SCIGetNodeInfoByAdapterName, number, list, &nodes, &type, NO_FLAGS);
	EXPECT(nodes[0] == own_node() && list[0] == 0);
	DO(SCIGetNodeIdByAdapterName, (char *)"203.0.113.77", &nodes, &type, NO_FLAGS);
	EXPECT(nodes[0] == 0);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIGetNodeIdByAdapterName, NULL, &nodes, &type,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIGetNodeIdByAdapterName, host, NULL, &type, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIGetNodeIdByAdapterName, host, &nodes, &type, 1);
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCIGetLocalNodeId, 1, &node, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADAPTERNO, SCIGetLocalNodeId, 99, &node, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIGetLocalNodeId, 0, NULL, NO_FLAGS);
}

static void hardware(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote = NULL;
	sci_smartio_device_t device = NULL;
	sci_address_t address = {4, 0, 0};
	sci_ioaddr_t io;
	sci_error_t error;
	sci_map_t map;
	uint64_t fdids[4];

	offer(sd, &segment, &map, 500, PAGE);
#define ABSENT(function, ...) REFUSED(SCI_ERR_NOT_SUPPORTED, function, __VA_ARGS__)
	ABSENT(SCIAttachPhysicalMemory, 0x1000, NULL, 0, PAGE, segment, NO_FLAGS);
	ABSENT(SCIConnectSCISpace, sd, 0, &remote, address, PAGE, NO_FLAGS);
	ABSENT(SCIphDmaEnqueue, NULL, 8, 0, 4, 0, 0, NO_FLAGS);
	ABSENT(SCIphDmaStart, NULL, NULL, NULL, NO_FLAGS);
	ABSENT(SCIGetCSRRegister, sd, 0, 4, 0, NO_FLAGS);
	ABSENT(SCISetCSRRegister, sd, 0, 4, 0, 1, NO_FLAGS);
	ABSENT(SCIGetLocalCSR, sd, 0, 0, NO_FLAGS);
	ABSENT(SCISetLocalCSR, sd, 0, 0, 1, NO_FLAGS);
	REFUSED(SCI_ERR_NO_SUCH_FDID, SCIBorrowDevice, sd, &device, 1, NO_FLAGS);
	ABSENT(SCIReturnDevice, device, NO_FLAGS);
	ABSENT(SCIReleaseExclusiveBorrow, device, NO_FLAGS);
	EXPECT(SCIGetFabricDeviceId(device) == 0);
	EXPECT(SCIGetDeviceList(sd, fdids, COUNT(fdids), NULL, NO_FLAGS, &error) == 0);
	EXPECT(error == SCI_ERR_OK);
	ABSENT(SCIConnectDeviceSegment, device, &remote, 0, SCI_MEMTYPE_BAR, NULL, NULL, NO_FLAGS);
	ABSENT(SCIConnectDeviceSegmentPath, device, &remote, 0, SCI_MEMTYPE_BAR, 0, NULL, NULL,
			NO_FLAGS);
	ABSENT(SCICreateDeviceSegment, device, 0, PAGE, SCI_MEMTYPE_PRIVATE,
			SCI_MEMACCESS_HOST_READ, NO_FLAGS);
	ABSENT(SCIMapLocalSegmentForDevice, segment, 0, device, &io, 0, PAGE, NO_FLAGS);
	ABSENT(SCIUnmapLocalSegmentForDevice, segment, 0, device, NO_FLAGS);
	ABSENT(SCIMapRemoteSegmentForDevice, remote, device, &io, 0, PAGE, NO_FLAGS);
	ABSENT(SCIUnmapRemoteSegmentForDevice, remote, device, NO_FLAGS);
	ABSENT(SCIRegisterPCIeRequester, sd, 0, 1, 0, SCI_FLAG_PCIE_REQUESTER_GLOBAL);
	ABSENT(SCIUnregisterPCIeRequester, sd, 0, 1, 0, NO_FLAGS);
	/* What older programs link against. */
	ABSENT(SCIConnectDeviceMemory, sd, &remote, 0, device, 0, 0, SCI_FLAG_BAR);
	REFUSED(SCI_ERR_NO_SUCH_FDID, SCIConnectDeviceBar, sd, &remote, 1, 0, 0, SCI_FLAG_SHARED);
	ABSENT(SCIMapSegmentForDevice, segment, device, 0, &io, NO_FLAGS);
	ABSENT(SCIUnmapSegmentForDevice, segment, device, 0, NO_FLAGS);
}

int main(void)
{
	static const struct test tests[] = {
		{"strings", strings},
		{"adapters, system, DMA", adapters},
		{"segments, maps, devices", objects},
		{"nodes by name", names},
		{"what needs hardware", hardware},
	};

	return run_tests(tests, COUNT(tests));
}
