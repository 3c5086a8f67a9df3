/* Input of bindgen. */
#include <infiniband/mlx5dv.h>
#include <infiniband/umad.h>
#include <infiniband/verbs.h>

#include "layout.h"
