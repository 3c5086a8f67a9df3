/* DPDK's static inline functions and macros, as functions. */
#include "shim.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eth_bond.h>
#include <rte_log.h>

const char *shim_pmd_dir(void) { return RTE_EAL_PMD_PATH; }

int shim_eal_init(int argc, char **argv)
{
	sigset_t ours, before;
	int rc;

#if RTE_VERSION < RTE_VERSION_NUM(24, 11, 0, 0)
	/* Otherwise each line of a driver would also go to syslog(3), which opens a socket on the calling thread.
	 * Later releases have an option for this. */
	rte_openlog_stream(stderr);
#endif
	sigemptyset(&ours);
	sigaddset(&ours, SIGHUP);
	sigaddset(&ours, SIGINT);
	sigaddset(&ours, SIGTERM);
	/* Threads inherit the signal mask of their creator. */
	pthread_sigmask(SIG_BLOCK, &ours, &before);
	rc = rte_eal_init(argc, argv);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int shim_errno(void) { return rte_errno; }
uint32_t shim_lcore_id(void) { return rte_lcore_id(); }
uint64_t shim_tsc(void) { return rte_rdtsc(); }

static int leave_out(const struct rte_memseg_list *list, void *failed)
{
	/* ENOMEM: part of the range is not mapped; the advice was applied to the rest. */
	if (madvise(list->base_va, list->len, MADV_DONTDUMP) != 0 && errno != ENOMEM)
		*(int *)failed = -errno;
	return 0;
}

int shim_leave_out_of_cores(void)
{
	int failed = 0;

	rte_memseg_list_walk(leave_out, &failed);
	return failed;
}

struct rte_mbuf *shim_mbuf_alloc(struct rte_mempool *pool) { return rte_pktmbuf_alloc(pool); }

int shim_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **bufs, uint32_t count)
{
	return rte_pktmbuf_alloc_bulk(pool, bufs, count);
}

int shim_mbuf_raw_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **bufs, uint32_t count)
{
	return rte_mempool_get_bulk(pool, (void **)bufs, count);
}

void shim_mbuf_raw_free_bulk(struct rte_mempool *pool, struct rte_mbuf *const *bufs, uint32_t count)
{
	rte_mempool_put_bulk(pool, (void *const *)bufs, count);
}

void shim_mbuf_free(struct rte_mbuf *chain) { rte_pktmbuf_free(chain); }
int shim_mbuf_linearize(struct rte_mbuf *chain) { return rte_pktmbuf_linearize(chain); }
uint16_t shim_mbuf_data_room(struct rte_mempool *pool) { return rte_pktmbuf_data_room_size(pool); }
uint32_t shim_mempool_size(const struct rte_mempool *pool) { return pool->size; }

uint16_t shim_eth_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, bufs, count);
}

uint16_t shim_eth_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, bufs, count);
}

int shim_eth_link(uint16_t port, uint32_t *mbps, int *up)
{
	struct rte_eth_link link = {0};
	int rc = rte_eth_link_get_nowait(port, &link);

	*mbps = link.link_speed;
	*up = link.link_status == RTE_ETH_LINK_UP;
	return rc;
}

const char *shim_eth_arguments(uint16_t port)
{
	struct rte_eth_dev_info info = {0};
	const struct rte_devargs *args = NULL;

	if (rte_eth_dev_info_get(port, &info) == 0 && info.device != NULL)
		args = rte_dev_devargs(info.device);
	return args == NULL ? NULL : args->args;
}

int shim_bond_is_active_backup(uint16_t bond) { return rte_eth_bond_mode_get(bond) == BONDING_MODE_ACTIVE_BACKUP; }

int shim_bond_is_lacp(uint16_t bond) { return rte_eth_bond_mode_get(bond) == BONDING_MODE_8023AD; }

int shim_bond_members(uint16_t bond, uint16_t *members, uint16_t room)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 11, 0, 0)
	return rte_eth_bond_members_get(bond, members, room);
#else
	return rte_eth_bond_slaves_get(bond, members, room);
#endif
}

int shim_bond_active(uint16_t bond) { return rte_eth_bond_primary_get(bond); }

int shim_bond_activate(uint16_t bond, uint16_t member) { return rte_eth_bond_primary_set(bond, member); }
