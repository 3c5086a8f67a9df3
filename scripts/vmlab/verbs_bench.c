/*
 * Rates of verbs calls of a device, each together with its inverse. On an adapter, each call is at least one
 * firmware command.
 *
 *   verbs_bench DEVICE SECONDS     prints a line for each pair of calls: its name, pairs per second
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 1 << 20 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char *memory;

static int domain(void)
{
	struct ibv_pd *it = ibv_alloc_pd(context);

	return !it || ibv_dealloc_pd(it);
}

static int region(void)
{
	struct ibv_mr *it = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);

	return !it || ibv_dereg_mr(it);
}

static int completions(void)
{
	struct ibv_cq *it = ibv_create_cq(context, 16, NULL, NULL, 0);

	return !it || ibv_destroy_cq(it);
}

static int pair(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *it = ibv_create_qp(pd, &init);

	return !it || ibv_destroy_qp(it);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	static const struct { const char *name; int (*call)(void); } all[] = {
		{ "protection-domain", domain }, { "memory-region-1MiB", region },
		{ "completion-queue", completions }, { "queue-pair", pair },
	};
	struct ibv_device **devices = ibv_get_device_list(NULL);
	double seconds = argc == 3 ? atof(argv[2]) : 0;

	for (int i = 0; devices && devices[i] && argc == 3; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), argv[1]))
			context = ibv_open_device(devices[i]);
	if (!context || seconds <= 0 || posix_memalign((void **)&memory, 4096, SIZE)) {
		fprintf(stderr, "usage: verbs_bench DEVICE SECONDS\n");
		return 2;
	}
	memset(memory, 1, SIZE);
	pd = ibv_alloc_pd(context);
	cq = pd ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
	if (!cq)
		return 1;
	for (unsigned int i = 0; i < sizeof(all) / sizeof(*all); i++) {
		double begin = now(), end = begin;
		unsigned int n = 0;

		for (; end < begin + seconds; end = now(), n++)
			if (all[i].call()) {
				perror(all[i].name);
				return 1;
			}
		printf("%s %.1f\n", all[i].name, n / (end - begin));
	}
	return 0;
}
