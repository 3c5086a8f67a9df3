//! Input and output structures of a request, copied from and to the memory that the library passed.

use uverbs_sys as abi;

/// Plain structures of the kernel's headers, valid for any bytes.
///
/// # Safety
///
/// The type holds numbers, and arrays and unions of them, only.
pub(super) unsafe trait Words: Default {}

macro_rules! words {
    ($($name:ident)*) => { $(
        // SAFETY: a struct of the kernel's interface, which has no pointers and no enums.
        unsafe impl Words for abi::$name {}
    )* };
}

words! {
    ib_uverbs_get_context_resp mlx5_ib_alloc_ucontext_resp ib_uverbs_query_device_resp
    ib_uverbs_ex_query_device_resp mlx5_ib_query_device_resp ib_uverbs_query_port_resp ib_uverbs_alloc_pd_resp
    mlx5_ib_alloc_pd_resp ib_uverbs_dealloc_pd ib_uverbs_reg_mr ib_uverbs_reg_mr_resp ib_uverbs_dereg_mr
    ib_uverbs_create_cq ib_uverbs_ex_create_cq ib_uverbs_create_cq_resp ib_uverbs_ex_create_cq_resp mlx5_ib_create_cq
    mlx5_ib_create_cq_resp ib_uverbs_destroy_cq ib_uverbs_destroy_cq_resp ib_uverbs_create_srq
    ib_uverbs_create_srq_resp mlx5_ib_create_srq mlx5_ib_create_srq_resp ib_uverbs_modify_srq ib_uverbs_destroy_srq
    ib_uverbs_destroy_srq_resp ib_uverbs_create_qp ib_uverbs_ex_create_qp ib_uverbs_create_qp_resp
    ib_uverbs_ex_create_qp_resp mlx5_ib_create_qp mlx5_ib_create_qp_resp ib_uverbs_modify_qp ib_uverbs_query_qp
    ib_uverbs_query_qp_resp ib_uverbs_destroy_qp ib_uverbs_destroy_qp_resp ib_uverbs_create_ah_resp
    mlx5_ib_create_ah_resp ib_uverbs_destroy_ah ib_uverbs_attach_mcast ib_uverbs_ex_modify_qp ib_uverbs_create_comp_channel_resp
}

/// A command, with the verbs part and the part between provider and driver.
pub(super) struct Command {
    pub(super) input: (u64, usize),
    pub(super) own_input: (u64, usize),
    pub(super) output: (u64, usize),
    pub(super) own_output: (u64, usize),
}

impl Command {
    fn read<T: Words>((address, len): (u64, usize)) -> T {
        let mut value = T::default();
        let len = len.min(size_of::<T>());
        // SAFETY: the library named this memory with this length; any bytes make a `T`.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, (&raw mut value).cast::<u8>(), len) };
        value
    }

    fn write<T: Words>((address, room): (u64, usize), value: &T) {
        let len = room.min(size_of::<T>());
        // SAFETY: the library named this memory with this length.
        unsafe {
            std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), address as *mut u8, len)
        };
    }

    pub(super) fn input<T: Words>(&self) -> T {
        Self::read(self.input)
    }

    pub(super) fn own<T: Words>(&self) -> T {
        Self::read(self.own_input)
    }

    pub(super) fn answer<T: Words>(&self, value: &T) {
        Self::write(self.output, value);
    }

    pub(super) fn own_answer<T: Words>(&self, value: &T) {
        Self::write(self.own_output, value);
    }
}
