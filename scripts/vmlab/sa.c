/*
 * Minimal subnet administration for the two ports of the lab: answers the queries of IPoIB over ib_umad.
 * Reads the present LID of a port from sysfs.
 *
 *   sa DEVICE
 *
 * SA_MTU: MTU code of groups and paths, 5 = 4096. SA_ELSEWHERE: other machines have ports, too.
 */
#include <arpa/inet.h>
#include <infiniband/umad.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GET = 0x01, SET = 0x02, GET_TABLE = 0x12, DELETE = 0x15, RESPONSE = 0x80 };
enum { CLASS_PORT_INFO = 0x01, INFORM_INFO = 0x03, PATH_RECORD = 0x35, MCMEMBER_RECORD = 0x38 };
enum { MAD_SIZE = 256, SA_DATA = 56, UNSUPPORTED = 0x000c, NO_RECORDS = 0x0300 };
enum { EXACTLY = 2 << 6, RATE_10G = 3, LIFE = 18, QKEY = 0x0b1b, MAX_GROUPS = 256 };

static uint8_t groups[MAX_GROUPS][16];
static unsigned int group_count;
static uint8_t mtu_code = 5;

static uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, (uint16_t)(v >> 16));
	put16(p + 2, (uint16_t)v);
}

/* Returns the LID of a port of another machine, which ibll derives from the GID. */
static uint16_t lid_elsewhere(const uint8_t *gid)
{
	static const uint8_t head[14] = { 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0 };

	return getenv("SA_ELSEWHERE") && !memcmp(gid, head, sizeof(head)) ? get16(gid + 14) : 0;
}

/* Returns the LID of the port with this GID, or 0. */
static uint16_t lid_of(const uint8_t *gid)
{
	for (int i = 0; i < 2; i++) {
		char path[64], text[64];
		struct in6_addr found;
		unsigned int lid = 0;

		snprintf(path, sizeof(path), "/sys/class/infiniband/ibx%d/ports/1/gids/0", i);
		FILE *f = fopen(path, "r");
		int ok = f && fscanf(f, "%63s", text) == 1 && inet_pton(AF_INET6, text, &found) == 1;

		if (f)
			fclose(f);
		if (!ok || memcmp(&found, gid, 16))
			continue;
		snprintf(path, sizeof(path), "/sys/class/infiniband/ibx%d/ports/1/lid", i);
		f = fopen(path, "r");
		ok = f && fscanf(f, "%x", &lid) == 1;
		if (f)
			fclose(f);
		return ok ? (uint16_t)lid : 0;
	}
	return lid_elsewhere(gid);
}

/* Returns the multicast LID of a group; the first join creates the group. */
static uint16_t mlid_of(const uint8_t *mgid)
{
	for (unsigned int i = 0; i < group_count; i++)
		if (!memcmp(groups[i], mgid, 16))
			return (uint16_t)(0xc000 + i);
	if (group_count == MAX_GROUPS)
		return 0;
	memcpy(groups[group_count], mgid, 16);
	return (uint16_t)(0xc000 + group_count++);
}

/*
 * IBA 15.2.5.17: MGID 0, PortGID 16, Q_Key 32, MLID 36, MTU 38, P_Key 40, rate 42, life 43, SL/flow/hop 44,
 * scope/join 48
 */
static void answer_group(uint8_t *record)
{
	put32(record + 32, QKEY);
	put16(record + 36, mlid_of(record));
	record[38] = EXACTLY | mtu_code;
	record[39] = 0;
	put16(record + 40, 0xffff);
	record[42] = EXACTLY | RATE_10G;
	record[43] = EXACTLY | LIFE;
	put32(record + 44, 0);
	record[48] = (uint8_t)(2 << 4 | (record[48] & 0xf));
}

/* IBA 15.2.5.16: DGID 8, SGID 24, DLID 40, SLID 42, flow/hop 44, P_Key 50, SL 52, MTU 54, rate 55, life 56 */
static int answer_path(uint8_t *record)
{
	uint16_t to = lid_of(record + 8), from = lid_of(record + 24);

	if (!to || !from)
		return 0;
	put16(record + 40, to);
	put16(record + 42, from);
	put32(record + 44, 0);
	record[48] = 0;
	record[49] = 0x80 | 1;
	put16(record + 50, 0xffff);
	put16(record + 52, 0);
	record[54] = EXACTLY | mtu_code;
	record[55] = EXACTLY | RATE_10G;
	record[56] = EXACTLY | LIFE;
	record[57] = 0;
	return 1;
}

/* Writes the response in place; returns its status. */
static uint16_t answer(uint8_t *mad)
{
	uint8_t *record = mad + SA_DATA;
	uint16_t attribute = get16(mad + 16);
	char text[INET6_ADDRSTRLEN];

	switch (attribute) {
	case MCMEMBER_RECORD:
		printf("sa: method %#x group %s\n", mad[3], inet_ntop(AF_INET6, record, text, sizeof(text)));
		answer_group(record);
		put16(mad + 44, 7); /* attribute offset: 56 bytes */
		return 0;
	case PATH_RECORD:
		printf("sa: path to %s\n", inet_ntop(AF_INET6, record + 8, text, sizeof(text)));
		put16(mad + 44, 8);
		return answer_path(record) ? 0 : NO_RECORDS;
	case CLASS_PORT_INFO:
		record[0] = 1;
		record[1] = 2;
		return 0;
	case INFORM_INFO:
		return 0;
	default:
		printf("sa: attribute %#x is not supported\n", attribute);
		return UNSUPPORTED;
	}
}

int main(int argc, char **argv)
{
	long mask[16 / sizeof(long)] = { 1L << GET | 1L << SET | 1L << GET_TABLE | 1L << DELETE };
	ib_user_mad_t *umad = calloc(1, (size_t)umad_size() + MAD_SIZE);

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (getenv("SA_MTU"))
		mtu_code = (uint8_t)atoi(getenv("SA_MTU"));
	if (argc != 2 || !umad || umad_init() < 0)
		return 2;
	int port = umad_open_port(argv[1], 1);
	int agent = port < 0 ? port : umad_register(port, 3, 2, 0, mask);
	if (agent < 0) {
		printf("sa: %s: %s\n", argv[1], strerror(-agent));
		return 1;
	}
	for (;;) {
		int len = MAD_SIZE;

		memset(umad, 0, (size_t)umad_size() + MAD_SIZE);
		if (umad_recv(port, umad, &len, -1) < 0 || umad_status(umad))
			continue;
		uint8_t *mad = umad_get_mad(umad);
		ib_mad_addr_t from = umad->addr;

		put16(mad + 4, answer(mad));
		mad[3] |= RESPONSE;
		if (mad[3] == (RESPONSE | SET))
			mad[3] = RESPONSE | GET;
		umad_set_addr(umad, ntohs(from.lid), (int)ntohl(from.qpn), 0, 0x80010000);
		if (from.grh_present) {
			from.hop_limit = 64;
			umad_set_grh(umad, &from);
		}
		if (umad_send(port, agent, umad, MAD_SIZE, 0, 0))
			printf("sa: a response could not be sent\n");
	}
}
