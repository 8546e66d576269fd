/* Asks what there is to ask: probe NODE */
#include "common.h"

int main(int argc, char *argv[])
{
	char text[128];
	sci_query_string_t string = {text, sizeof(text)};
	sci_query_adapter_t adapter;
	unsigned int value, node;
	sci_desc_t sd;
	sci_error_t error;

	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	SCIQuery(SCI_Q_API, &string, NO_FLAGS, &error);
	CHECK("SCIQuery", error);
	printf("API: %s\n", text);
	adapter.localAdapterNo = 0;
	adapter.portNo = 0;
	adapter.data = &value;
	adapter.subcommand = SCI_Q_ADAPTER_NUMBER_OF_LINKS;
	SCIQuery(SCI_Q_ADAPTER, &adapter, NO_FLAGS, &error);
	CHECK("SCIQuery", error);
	printf("links: %u\n", value);
	adapter.subcommand = SCI_Q_ADAPTER_LINK_OPERATIONAL;
	SCIQuery(SCI_Q_ADAPTER, &adapter, NO_FLAGS, &error);
	CHECK("SCIQuery", error);
	printf("operational: %u\n", value);
	node = argc > 1 ? (unsigned int)atoi(argv[1]) : local_node_id(0);
	if (SCIProbeNode(sd, 0, node, NO_FLAGS, &error)) {
		printf("node %u is reachable\n", node);
	} else {
		switch (error) {
		case SCI_ERR_NO_LINK_ACCESS:
		case SCI_ERR_NO_REMOTE_LINK_ACCESS:
		case SCI_ERR_NO_SUCH_NODEID:
			printf("node %u is not reachable\n", node);
			break;
		default:
			CHECK("SCIProbeNode", error);
		}
		return EXIT_FAILURE;
	}
	SCIClose(sd, NO_FLAGS, &error);
	CHECK("SCIClose", error);
	SCITerminate();
	return EXIT_SUCCESS;
}
