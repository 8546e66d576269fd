/* Compiled as C and C++ of several standards, with every warning. */
#include <sisci_error.h>
#include <sisci_types.h>
#include <dis_types.h>
#include <sisci_api.h>
#include <sisci_api.h>

/* What programs put between arguments. */
static void in_and_out(IN int in, OUT int *out, IN_OUT int *both)
{
	*out = in;
	*both += in;
}

/* Errors are case labels; those that share a value are named once. */
static int severity(sci_error_t error)
{
	switch (error) {
	case SCI_ERR_OK:
		return 0;
	case SCI_ERR_NO_SUCH_SEGMENT:
	case SCI_ERR_REMOTE_BUSY:
	case SCI_ERR_SEGMENTID_USED:
	case SCI_ERR_INTNO_USED:
		return 1;
	default:
		return 2;
	}
}

int main(void)
{
	sci_error_t error = SCI_ERR_OK;
	sci_desc_t sd = NULL;
	sci_map_t map = NULL;
	volatile int *memory;
	int value, sum = 0;

	in_and_out(1, &value, &sum);
	SCIInitialize(0, &error);
	SCIOpen(&sd, 0, &error);
	memory = (volatile int *)SCIMapRemoteSegment(NULL, &map, 0, sizeof(int), NULL,
			SCI_FLAG_READONLY_MAP, &error);
	SCIClose(sd, 0, &error);
	SCITerminate();
	return severity(error) + (memory != NULL) + value + sum;
}
