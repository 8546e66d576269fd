/* What programs for SISCI define for themselves. */
#ifndef COMMON_H
#define COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sisci_error.h"
#include "sisci_api.h"

#define NO_CALLBACK NULL
#define NO_ARG NULL
#define NO_FLAGS 0
#define NO_OFFSET 0
#define NO_SUGGESTED_ADDRESS NULL

#define CHECK(call, error) \
	do { \
		if ((error) != SCI_ERR_OK) { \
			fprintf(stderr, "%s failed: %s (0x%x)\n", call, \
					SCIGetErrorString(error), (unsigned int)(error)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)

static inline unsigned int local_node_id(unsigned int adapter)
{
	sci_query_adapter_t query;
	unsigned int node = 0;
	sci_error_t error;

	query.subcommand = SCI_Q_ADAPTER_NODEID;
	query.localAdapterNo = adapter;
	query.data = &node;
	SCIQuery(SCI_Q_ADAPTER, &query, NO_FLAGS, &error);
	CHECK("SCIQuery", error);
	return node;
}

#endif
