/* Sizes and offsets of mlx5dv.h's formats as constants: bindgen cannot lay out all of them, the compiler can. */
#include <stddef.h>

#include <infiniband/mlx5dv.h>

#define SIZE(s) MLX5_SIZE_##s = sizeof(struct mlx5_##s)
#define AT(s, f) MLX5_AT_##s##_##f = offsetof(struct mlx5_##s, f)

enum {
	SIZE(wqe_ctrl_seg), AT(wqe_ctrl_seg, opmod_idx_opcode), AT(wqe_ctrl_seg, qpn_ds),
	AT(wqe_ctrl_seg, signature), AT(wqe_ctrl_seg, dci_stream_channel_id), AT(wqe_ctrl_seg, fm_ce_se),
	AT(wqe_ctrl_seg, imm),
	SIZE(wqe_data_seg), AT(wqe_data_seg, byte_count), AT(wqe_data_seg, lkey), AT(wqe_data_seg, addr),
	SIZE(wqe_inl_data_seg), AT(wqe_inl_data_seg, byte_count),
	SIZE(wqe_raddr_seg), AT(wqe_raddr_seg, raddr), AT(wqe_raddr_seg, rkey), AT(wqe_raddr_seg, reserved),
	SIZE(wqe_atomic_seg), AT(wqe_atomic_seg, swap_add), AT(wqe_atomic_seg, compare),
	AT(wqe_eth_seg, rsvd0), AT(wqe_eth_seg, cs_flags), AT(wqe_eth_seg, rsvd1), AT(wqe_eth_seg, mss),
	AT(wqe_eth_seg, rsvd2), AT(wqe_eth_seg, inline_hdr_sz), AT(wqe_eth_seg, inline_hdr_start),
	SIZE(wqe_av), MLX5_AT_wqe_av_qkey = offsetof(struct mlx5_wqe_av, key.qkey.qkey),
	MLX5_AT_wqe_av_reserved = offsetof(struct mlx5_wqe_av, key.qkey.reserved), AT(wqe_av, dqp_dct),
	AT(wqe_av, stat_rate_sl), AT(wqe_av, fl_mlid), AT(wqe_av, rlid), AT(wqe_av, reserved0), AT(wqe_av, rmac),
	AT(wqe_av, tclass), AT(wqe_av, hop_limit), AT(wqe_av, grh_gid_fl), AT(wqe_av, rgid),
	SIZE(wqe_srq_next_seg), AT(wqe_srq_next_seg, rsvd0), AT(wqe_srq_next_seg, next_wqe_index),
	AT(wqe_srq_next_seg, signature), AT(wqe_srq_next_seg, rsvd1),
	SIZE(wqe_umr_ctrl_seg), AT(wqe_umr_ctrl_seg, flags), AT(wqe_umr_ctrl_seg, rsvd0),
	AT(wqe_umr_ctrl_seg, klm_octowords), AT(wqe_umr_ctrl_seg, translation_offset),
	AT(wqe_umr_ctrl_seg, mkey_mask), AT(wqe_umr_ctrl_seg, rsvd1),
	SIZE(wqe_mkey_context_seg), AT(wqe_mkey_context_seg, free), AT(wqe_mkey_context_seg, reserved1),
	AT(wqe_mkey_context_seg, access_flags), AT(wqe_mkey_context_seg, sf), AT(wqe_mkey_context_seg, qpn_mkey),
	AT(wqe_mkey_context_seg, reserved2), AT(wqe_mkey_context_seg, flags_pd),
	AT(wqe_mkey_context_seg, start_addr), AT(wqe_mkey_context_seg, len),
	AT(wqe_mkey_context_seg, bsf_octword_size), AT(wqe_mkey_context_seg, reserved3),
	AT(wqe_mkey_context_seg, translations_octword_size), AT(wqe_mkey_context_seg, reserved4),
	AT(wqe_mkey_context_seg, log_page_size), AT(wqe_mkey_context_seg, reserved),
	SIZE(wqe_umr_klm_seg), AT(wqe_umr_klm_seg, byte_count), AT(wqe_umr_klm_seg, mkey),
	AT(wqe_umr_klm_seg, address),
	SIZE(wqe_umr_repeat_block_seg), AT(wqe_umr_repeat_block_seg, byte_count), AT(wqe_umr_repeat_block_seg, op),
	AT(wqe_umr_repeat_block_seg, repeat_count), AT(wqe_umr_repeat_block_seg, reserved),
	AT(wqe_umr_repeat_block_seg, num_ent),
	SIZE(wqe_umr_repeat_ent_seg), AT(wqe_umr_repeat_ent_seg, stride), AT(wqe_umr_repeat_ent_seg, byte_count),
	AT(wqe_umr_repeat_ent_seg, memkey), AT(wqe_umr_repeat_ent_seg, va),
	SIZE(cqe64), AT(cqe64, rsvd0), AT(cqe64, wqe_id), AT(cqe64, rsvd4), AT(cqe64, ml_path), AT(cqe64, rsvd20),
	AT(cqe64, slid), AT(cqe64, flags_rqpn), AT(cqe64, hds_ip_ext), AT(cqe64, l4_hdr_type_etc),
	AT(cqe64, vlan_info), AT(cqe64, srqn_uidx), AT(cqe64, imm_inval_pkey), AT(cqe64, app), AT(cqe64, app_op),
	AT(cqe64, app_info), AT(cqe64, byte_cnt), AT(cqe64, timestamp), AT(cqe64, sop_drop_qpn),
	AT(cqe64, wqe_counter), AT(cqe64, signature), AT(cqe64, op_own),
	SIZE(err_cqe), AT(err_cqe, rsvd0), AT(err_cqe, srqn), AT(err_cqe, rsvd1), AT(err_cqe, vendor_err_synd),
	AT(err_cqe, syndrome), AT(err_cqe, s_wqe_opcode_qpn), AT(err_cqe, wqe_counter), AT(err_cqe, signature),
	AT(err_cqe, op_own),
};

#undef SIZE
#undef AT
