/* Input of bindgen. */
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

/* Macros that bindgen does not evaluate. */
enum {
	REQUEST_VERBS = RDMA_VERBS_IOCTL,
	REQUEST_EXTENDED = IB_USER_VERBS_CMD_FLAG_EXTENDED,
};
