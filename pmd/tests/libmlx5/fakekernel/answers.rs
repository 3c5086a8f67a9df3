//! Device attributes.

use pmd::hca::PortState;
use uverbs_sys as abi;
use verbs_sys as verbs;

use super::command::{Outcome, errno};
use super::device::{Device, PORT};
use super::system;
use super::words::Command;

pub(super) fn get_context(device: &Device, c: &Command) {
    c.answer(&abi::ib_uverbs_get_context_resp {
        async_fd: system::event_descriptor(device.index()) as u32,
        num_comp_vectors: 1,
        ..Default::default()
    });
    c.own_answer(&abi::mlx5_ib_alloc_ucontext_resp {
        qp_tab_size: 1 << 18,
        // Two halves of 256 bytes.
        bf_reg_size: if device.settings.write_combining { 512 } else { 0 },
        // None: doorbell pages are requested when needed, as with current kernels.
        tot_bfregs: 0,
        cache_line_size: 64,
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: 512,
        max_send_wqebb: 32768,
        max_recv_wr: 32768,
        max_srq_recv_wr: 32767,
        num_ports: 1,
        response_length: size_of::<abi::mlx5_ib_alloc_ucontext_resp>() as u32,
        cqe_version: device.settings.cqe_version,
        comp_mask: if device.settings.users {
            abi::MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG
        } else {
            0
        },
        cmds_supp_uhw: (abi::MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | abi::MLX5_USER_CMDS_SUPP_UHW_CREATE_AH)
            as u8,
        log_uar_size: 12,
        num_uars_per_page: 1,
        ..Default::default()
    });
}

pub(super) fn attributes(device: &Device) -> abi::ib_uverbs_query_device_resp {
    abi::ib_uverbs_query_device_resp {
        node_guid: device.settings.guid.to_be(),
        sys_image_guid: device.settings.guid.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: 0x15b3,
        vendor_part_id: 0x1017,
        max_qp: 1 << 17,
        max_qp_wr: 32768,
        max_sge: 30,
        max_cq: 1 << 16,
        max_cqe: (1 << 22) - 1,
        max_mr: 1 << 24,
        max_pd: 1 << 24,
        max_mcast_grp: 2048,
        max_ah: 1 << 30,
        max_srq: 1 << 16,
        max_srq_wr: 32767,
        max_srq_sge: 31,
        max_pkeys: 128,
        phys_port_cnt: 1,
        ..Default::default()
    }
}

pub(super) fn query_port(device: &Device, c: &Command) -> Outcome {
    let port = device.engine.port_attributes(PORT).map_err(|e| errno(&e))?;
    c.answer(&abi::ib_uverbs_query_port_resp {
        max_msg_sz: 1 << 30,
        gid_tbl_len: 1,
        pkey_tbl_len: 1,
        lid: port.lid.0,
        sm_lid: port.sm_lid.0,
        state: if port.state == PortState::Active { 4 } else { 1 },
        max_mtu: port.max_mtu.code(),
        active_mtu: port.active_mtu.code(),
        max_vl_num: 1,
        active_width: 2,
        active_speed: 32,
        phys_state: 5,
        link_layer: verbs::IBV_LINK_LAYER_INFINIBAND as u8,
        flags: if port.grh_required { verbs::IB_UVERBS_QPF_GRH_REQUIRED as u8 } else { 0 },
        ..Default::default()
    });
    Ok(())
}
