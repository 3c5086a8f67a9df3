# shellcheck shell=bash
# Sourced in the guest: creates two soft-RoCE devices over a pair of Ethernet interfaces
# with InfiniBand ports, ibx0 with LID 1 and ibx1 with LID 2.
modprobe -a veth ib_core ib_uverbs ib_umad
insmod /mnt/ibll.ko
modprobe rdma_rxe
ip link add v0 type veth peer name v1
for i in 0 1; do
    # The GID is the interface's link-local address, which must exist immediately.
    sysctl -qw "net.ipv6.conf.v$i.accept_dad=0" "net.ipv6.conf.v$i.addr_gen_mode=0"
    ip link set "v$i" address "02:00:00:00:00:0$((i + 1))"
    ip link set "v$i" mtu 5000 up
done
rdma link add ibx0 type rxe netdev v0
rdma link add ibx1 type rxe netdev v1
