/* Input of bindgen: DPDK's headers, constants from macros, and functions for inline functions. */
#ifndef DPDK_SHIM_H
#define DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* struct rte_mbuf is opaque to Rust: its nested anonymous unions change between releases, the names do not. */
static const size_t SHIM_MBUF_SIZE = sizeof(struct rte_mbuf);
static const size_t SHIM_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr);
static const size_t SHIM_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len);
static const size_t SHIM_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off);
static const size_t SHIM_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt);
static const size_t SHIM_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs);
static const size_t SHIM_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags);
static const size_t SHIM_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len);
static const size_t SHIM_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len);
static const size_t SHIM_MBUF_POOL = offsetof(struct rte_mbuf, pool);
static const size_t SHIM_MBUF_NEXT = offsetof(struct rte_mbuf, next);
static const size_t SHIM_MBUF_PACKET_TYPE = offsetof(struct rte_mbuf, packet_type);
static const size_t SHIM_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci);

static const uint32_t SHIM_PTYPE_TUNNEL = RTE_PTYPE_TUNNEL_MASK;
static const uint64_t SHIM_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;
static const uint64_t SHIM_RX_QINQ = RTE_MBUF_F_RX_QINQ | RTE_MBUF_F_RX_QINQ_STRIPPED;
static const uint64_t SHIM_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t SHIM_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t SHIM_RX_OUTER_IP_CKSUM_BAD = RTE_MBUF_F_RX_OUTER_IP_CKSUM_BAD;
static const uint64_t SHIM_TX_VLAN = RTE_MBUF_F_TX_VLAN;
/* The data are in another mbuf's buffer, or in an external one. */
static const uint64_t SHIM_ATTACHED = RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;

static const uint32_t SHIM_MAX_SEGS = RTE_MBUF_MAX_NB_SEGS;
static const uint32_t SHIM_HEADROOM = RTE_PKTMBUF_HEADROOM;
static const uint32_t SHIM_MEMPOOL_CACHE_MAX = RTE_MEMPOOL_CACHE_MAX_SIZE;
static const uint32_t SHIM_LCORE_ID_ANY = LCORE_ID_ANY;
static const uint32_t SHIM_MAX_LCORE = RTE_MAX_LCORE;
static const uint32_t SHIM_MAX_ETHPORTS = RTE_MAX_ETHPORTS;
static const uint64_t SHIM_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t SHIM_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t SHIM_TX_OFFLOAD_VLAN_INSERT = RTE_ETH_TX_OFFLOAD_VLAN_INSERT;
static const uint64_t SHIM_RX_OFFLOAD_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t SHIM_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t SHIM_RSS_IP_PORTS = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;

const char *shim_pmd_dir(void);
/* rte_eal_init. EAL logs only to standard error, and its threads block the program's signals (HUP, INT, TERM). */
int shim_eal_init(int argc, char **argv);
int shim_errno(void);
uint32_t shim_lcore_id(void);
uint64_t shim_tsc(void);
/* Excludes the memory that EAL has allocated so far from core dumps. Returns 0 or a negative errno. */
int shim_leave_out_of_cores(void);

struct rte_mbuf *shim_mbuf_alloc(struct rte_mempool *pool);
int shim_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **bufs, uint32_t count);
/* Allocates buffers without resetting them, like rte_mbuf_raw_alloc. */
int shim_mbuf_raw_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **bufs, uint32_t count);
/* Frees buffers of this pool. Each must be a direct single segment with one reference, as for rte_mbuf_raw_free. */
void shim_mbuf_raw_free_bulk(struct rte_mempool *pool, struct rte_mbuf *const *bufs, uint32_t count);
void shim_mbuf_free(struct rte_mbuf *chain);
int shim_mbuf_linearize(struct rte_mbuf *chain);
uint16_t shim_mbuf_data_room(struct rte_mempool *pool);
uint32_t shim_mempool_size(const struct rte_mempool *pool);

uint16_t shim_eth_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count);
uint16_t shim_eth_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **bufs, uint16_t count);

/* Returns the arguments of a port after its name, or NULL. */
const char *shim_eth_arguments(uint16_t port);

/* Bonds. Their functions were renamed in 23.11. */
int shim_bond_is_active_backup(uint16_t bond);
int shim_bond_is_lacp(uint16_t bond);
int shim_bond_members(uint16_t bond, uint16_t *members, uint16_t room);
int shim_bond_active(uint16_t bond);
int shim_bond_activate(uint16_t bond, uint16_t member);

/* Bit-fields of struct rte_eth_link. Returns 0 or a negative errno. */
int shim_eth_link(uint16_t port, uint32_t *mbps, int *up);

#endif
