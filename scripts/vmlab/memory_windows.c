/*
 * Tests memory windows with libibverbs only. The other end of a connection reads and writes bound memory;
 * accesses without permission fail with the expected status.
 *
 *   memory_windows DEVICE OTHER [rxe]    prints a line for each check
 *
 * OTHER is the device of the far end. rxe leaves out what soft-RoCE does differently: it checks the bounds of
 * the region, not of the window, and reports an invalidation by another flag than that of the library.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 8192, FAR = 0, OWNER = 1, TIMEOUT_S = 20 };

/* The far end reads and writes; the owner binds windows. */
static struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	char *memory;
} ends[2];

static int failures, rxe;

static void check(const char *what, int well, const char *why)
{
	printf("%-7s windows: %s%s%s\n", well ? "ok" : "FAILED", what, well ? "" : ": ", well ? "" : why);
	failures += !well;
}

static int open_end(struct end *end, const char *name)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	for (int i = 0; devices && devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			end->context = ibv_open_device(devices[i]);
	if (!end->context || posix_memalign((void **)&end->memory, 4096, SIZE))
		return 1;
	end->pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, 64, NULL, NULL, 0);
	end->mr = ibv_reg_mr(end->pd, end->memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	return !end->pd || !end->cq || !end->mr;
}

static int to_send(struct end *end, struct end *other)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND,
	};
	struct ibv_port_attr port;

	if (ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_query_port(other->context, 1, &port))
		return 1;
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp->qp_num,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .dlid = port.lid, .port_num = 1 },
	};
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.hop_limit = 64;
		if (ibv_query_gid(other->context, 1, 0, &attr.ah_attr.grh.dgid))
			return 1;
	}
	if (ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return 1;
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS, .max_rd_atomic = 4, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
	};
	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
			     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
}

/* Replaces the connection by a new one, with one posted receive at the owner. */
static int connect_ends(void)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_sge sge = { .addr = (uintptr_t)ends[OWNER].memory + SIZE - 64, .length = 64, .lkey = ends[OWNER].mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 9, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		if (ends[i].qp && ibv_destroy_qp(ends[i].qp))
			return 1;
		while (ibv_poll_cq(ends[i].cq, 1, &wc) > 0)
			;
		init.send_cq = init.recv_cq = ends[i].cq;
		ends[i].qp = ibv_create_qp(ends[i].pd, &init);
		if (!ends[i].qp)
			return 1;
	}
	return to_send(&ends[0], &ends[1]) || to_send(&ends[1], &ends[0]) || ibv_post_recv(ends[OWNER].qp, &receive, &bad);
}

/* Returns the status of the next completion, or -1 after a timeout. */
static int complete(int at, struct ibv_wc *wc)
{
	time_t begin = time(NULL);

	while (time(NULL) - begin < TIMEOUT_S)
		if (ibv_poll_cq(ends[at].cq, 1, wc) == 1)
			return (int)wc->status;
	return -1;
}

static int post(int at, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr->send_flags |= IBV_SEND_SIGNALED;
	return ibv_post_send(ends[at].qp, wr, &bad) ? -1 : complete(at, &wc);
}

/* Transfers LEN bytes between the far end's memory and ADDRESS. */
static int rdma(enum ibv_wr_opcode opcode, uint64_t address, uint32_t rkey, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)ends[FAR].memory, .length = len, .lkey = ends[FAR].mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .wr.rdma = { .remote_addr = address, .rkey = rkey },
	};

	return post(FAR, &wr);
}

static int bind2(struct ibv_mw *mw, uint32_t rkey, uint64_t address, uint64_t len, unsigned int access)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = { .mw = mw, .rkey = rkey, .bind_info = { ends[OWNER].mr, address, len, access } },
	};
	int status = post(OWNER, &wr);

	if (status == IBV_WC_SUCCESS)
		mw->rkey = rkey;
	return status;
}

static int bind1(struct ibv_mw *mw, uint64_t address, uint64_t len, unsigned int access)
{
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED, .bind_info = { ends[OWNER].mr, address, len, access },
	};
	struct ibv_wc wc;

	return ibv_bind_mw(ends[OWNER].qp, mw, &bind) ? -1 : complete(OWNER, &wc);
}

static int invalidate(uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey };

	return post(OWNER, &wr);
}

/* Checks that WHAT has the expected status. */
static void expect(const char *what, int status, int expected)
{
	check(what, status == expected, status < 0 ? "no completion" : ibv_wc_status_str(status));
}

/* Writes and reads through a window of LEN bytes, and compares the whole memory. */
static void use(const char *what, uint32_t rkey, char *at, uint32_t len)
{
	char *far = ends[FAR].memory, *own = ends[OWNER].memory;
	int well;

	memset(own, 0x11, SIZE);
	memset(far, 0x22, len);
	well = rdma(IBV_WR_RDMA_WRITE, (uintptr_t)at, rkey, len) == IBV_WC_SUCCESS;
	for (char *byte = own; byte < own + SIZE; byte++)
		well &= *byte == (byte >= at && byte < at + len ? 0x22 : 0x11);
	memset(at, 0x33, len);
	well &= rdma(IBV_WR_RDMA_READ, (uintptr_t)at, rkey, len) == IBV_WC_SUCCESS;
	for (uint32_t i = 0; i < len; i++)
		well &= far[i] == 0x33;
	check(what, well, "an operation failed, or the memory differs");
}

/*
 * Replaces a failed connection, and frees a window that is bound to it: before the connection on soft-RoCE,
 * whose queue pairs wait for their windows.
 */
static void renew(struct ibv_mw *mw)
{
	int broken = mw && rxe && ibv_dealloc_mw(mw);

	broken |= connect_ends() || (mw && !rxe && ibv_dealloc_mw(mw));
	if (broken)
		check("a new connection", 0, "it cannot be created, or the window cannot be freed");
}

static void refused(const char *what, int status, struct ibv_mw *mw)
{
	expect(what, status, IBV_WC_REM_ACCESS_ERR);
	renew(mw);
}

static void type2(void)
{
	const unsigned int both = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mw *mw = ibv_alloc_mw(ends[OWNER].pd, IBV_MW_TYPE_2);
	char *at = ends[OWNER].memory + 100;
	uint32_t old;
	int status;
	struct ibv_wc wc;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_INV };

	if (!mw) {
		check("a window of type 2", 0, "it cannot be allocated");
		return;
	}
	expect("type 2 is bound", bind2(mw, ibv_inc_rkey(mw->rkey), (uintptr_t)at, 3000, both), IBV_WC_SUCCESS);
	use("type 2 is written and read", mw->rkey, at, 3000);
	expect("type 2 is invalidated", invalidate(mw->rkey), IBV_WC_SUCCESS);
	old = mw->rkey;
	expect("type 2 is bound again", bind2(mw, ibv_inc_rkey(old), (uintptr_t)at, 10, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
	expect("type 2 is written again", rdma(IBV_WR_RDMA_WRITE, (uintptr_t)at, mw->rkey, 10), IBV_WC_SUCCESS);
	wr.invalidate_rkey = mw->rkey;
	expect("the far end invalidates", post(FAR, &wr), IBV_WC_SUCCESS);
	check("the owner is notified which", complete(OWNER, &wc) == IBV_WC_SUCCESS && wc.wr_id == 9 &&
	      (rxe || (wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == mw->rkey)), "its completion does not report it");
	memset(at, 0x44, 10);
	refused("what was invalidated is refused", rdma(IBV_WR_RDMA_WRITE, (uintptr_t)at, mw->rkey, 1), NULL);
	check("nothing was written", *at == 0x44, "it was");

	expect("bound on another connection", bind2(mw, ibv_inc_rkey(mw->rkey), (uintptr_t)at, 10, IBV_ACCESS_REMOTE_WRITE), IBV_WC_SUCCESS);
	refused("an older key is refused", rdma(IBV_WR_RDMA_WRITE, (uintptr_t)at, old, 1), mw);

	/* Each uses its own connection and window, as an error makes both unusable. */
	static const struct { const char *what; enum ibv_wr_opcode opcode; int offset, len; } wrong[] = {
		{ "a READ without the right is refused", IBV_WR_RDMA_READ, 0, 1 },
		{ "beyond the end is refused", IBV_WR_RDMA_WRITE, 5, 6 },
		{ "before the start is refused", IBV_WR_RDMA_WRITE, -1, 1 },
	};
	for (unsigned int i = 0; i < (rxe ? 1 : sizeof(wrong) / sizeof(*wrong)); i++) {
		mw = ibv_alloc_mw(ends[OWNER].pd, IBV_MW_TYPE_2);
		if (!mw || bind2(mw, ibv_inc_rkey(mw->rkey), (uintptr_t)at, 10, IBV_ACCESS_REMOTE_WRITE)) {
			check(wrong[i].what, 0, "no window");
			continue;
		}
		refused(wrong[i].what, rdma(wrong[i].opcode, (uintptr_t)at + wrong[i].offset, mw->rkey, wrong[i].len), mw);
		check("and nothing was written", *at == 0x44 && at[-1] != 0x22, "it was");
	}
	/* A window beyond the region fails at the bind or at its use. */
	mw = ibv_alloc_mw(ends[OWNER].pd, IBV_MW_TYPE_2);
	at = ends[OWNER].memory + SIZE - 10;
	status = bind2(mw, ibv_inc_rkey(mw->rkey), (uintptr_t)at, 11, both);
	if (status == IBV_WC_SUCCESS)
		status = rdma(IBV_WR_RDMA_WRITE, (uintptr_t)at, mw->rkey, 11) == IBV_WC_REM_ACCESS_ERR ? IBV_WC_MW_BIND_ERR : -1;
	expect("more than the region is refused", status, IBV_WC_MW_BIND_ERR);
	renew(mw);
	/* Invalidation with a wrong key: an error of the owner. */
	mw = ibv_alloc_mw(ends[OWNER].pd, IBV_MW_TYPE_2);
	at = ends[OWNER].memory;
	expect("bound once more", bind2(mw, ibv_inc_rkey(mw->rkey), (uintptr_t)at, 10, both), IBV_WC_SUCCESS);
	status = invalidate(mw->rkey ^ 0x80);
	expect("another tag does not invalidate", status, rxe ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_MW_BIND_ERR);
	renew(mw);
}

static void type1(void)
{
	const unsigned int both = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mw *mw = ibv_alloc_mw(ends[OWNER].pd, IBV_MW_TYPE_1);
	char *at = ends[OWNER].memory + 5000;
	uint32_t old;

	if (!mw) {
		check("a window of type 1", 0, "it cannot be allocated");
		return;
	}
	expect("type 1 is bound", bind1(mw, (uintptr_t)at, 1000, both), IBV_WC_SUCCESS);
	use("type 1 is written and read", mw->rkey, at, 1000);
	old = mw->rkey;
	expect("type 1 is bound elsewhere", bind1(mw, (uintptr_t)at + 1000, 1000, both), IBV_WC_SUCCESS);
	check("under another key", mw->rkey != old, "it is the same");
	use("type 1 is used there", mw->rkey, at + 1000, 1000);
	refused("the key before is refused", rdma(IBV_WR_RDMA_WRITE, (uintptr_t)at, old, 1), NULL);
	old = mw->rkey;
	expect("type 1 is bound to nothing", bind1(mw, 0, 0, 0), IBV_WC_SUCCESS);
	refused("and then it is refused", rdma(IBV_WR_RDMA_WRITE, (uintptr_t)at + 1000, old, 1), NULL);
	check("type 1 is freed", !ibv_dealloc_mw(mw), "it cannot be freed");
}

int main(int argc, char **argv)
{
	struct ibv_device_attr attr;

	setvbuf(stdout, NULL, _IOLBF, 0);
	rxe = argc == 4 && !strcmp(argv[3], "rxe");
	if (argc != 3 + rxe || open_end(&ends[FAR], argv[2]) || open_end(&ends[OWNER], argv[1]) || connect_ends()) {
		fprintf(stderr, "usage: memory_windows DEVICE OTHER [rxe]\n");
		return 2;
	}
	if (ibv_query_device(ends[OWNER].context, &attr) || !(attr.device_cap_flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B)))
		check("the device has windows", 0, "its capability flags lack them");
	type2();
	type1();
	return failures > 0;
}
