//! Compile-time comparison of the formats with the installed `mlx5dv.h`, field by field.

use verbs_sys as sys;

use prm::*;

/// Compares size and offsets of a struct of [`prm`] with the header's.
macro_rules! same {
    ($ours:ident $(= $size:ident)?: $($field:ident $theirs:ident),*) => {
        $(const _: () = assert!(size_of::<$ours>() == sys::$size as usize);)?
        $(const _: () = assert!(std::mem::offset_of!($ours, $field) == sys::$theirs as usize);)*
    };
}

/// Compares constants of [`prm`] with the header's.
macro_rules! equal {
    ($($ours:expr, $theirs:ident;)*) => {
        $(const _: () = assert!($ours as u64 == sys::$theirs as u64);)*
    };
}

same!(
    ControlSegment = MLX5_SIZE_wqe_ctrl_seg:
    opmod_index_opcode MLX5_AT_wqe_ctrl_seg_opmod_idx_opcode,
    qpn_ds MLX5_AT_wqe_ctrl_seg_qpn_ds, signature MLX5_AT_wqe_ctrl_seg_signature,
    dci_stream MLX5_AT_wqe_ctrl_seg_dci_stream_channel_id, fm_ce_se MLX5_AT_wqe_ctrl_seg_fm_ce_se,
    imm MLX5_AT_wqe_ctrl_seg_imm
);
same!(
    DataSegment = MLX5_SIZE_wqe_data_seg:
    byte_count MLX5_AT_wqe_data_seg_byte_count, lkey MLX5_AT_wqe_data_seg_lkey,
    address MLX5_AT_wqe_data_seg_addr
);
same!(
    InlineHeader = MLX5_SIZE_wqe_inl_data_seg:
    byte_count MLX5_AT_wqe_inl_data_seg_byte_count
);
same!(
    RemoteAddressSegment = MLX5_SIZE_wqe_raddr_seg:
    address MLX5_AT_wqe_raddr_seg_raddr, rkey MLX5_AT_wqe_raddr_seg_rkey,
    reserved MLX5_AT_wqe_raddr_seg_reserved
);
same!(
    AtomicSegment = MLX5_SIZE_wqe_atomic_seg:
    swap_add MLX5_AT_wqe_atomic_seg_swap_add,
    compare MLX5_AT_wqe_atomic_seg_compare
);
same!(
    EthernetSegment:
    reserved_0 MLX5_AT_wqe_eth_seg_rsvd0, checksum_flags MLX5_AT_wqe_eth_seg_cs_flags,
    reserved_5 MLX5_AT_wqe_eth_seg_rsvd1, mss MLX5_AT_wqe_eth_seg_mss, reserved_8 MLX5_AT_wqe_eth_seg_rsvd2,
    inline_header_size MLX5_AT_wqe_eth_seg_inline_hdr_sz, inline_start MLX5_AT_wqe_eth_seg_inline_hdr_start
);
same!(
    DatagramAddress = MLX5_SIZE_wqe_av:
    qkey MLX5_AT_wqe_av_qkey, reserved_4 MLX5_AT_wqe_av_reserved,
    dqp MLX5_AT_wqe_av_dqp_dct, rate_sl MLX5_AT_wqe_av_stat_rate_sl, path_bits MLX5_AT_wqe_av_fl_mlid,
    rlid MLX5_AT_wqe_av_rlid, reserved_16 MLX5_AT_wqe_av_reserved0, rmac MLX5_AT_wqe_av_rmac,
    traffic_class MLX5_AT_wqe_av_tclass, hop_limit MLX5_AT_wqe_av_hop_limit,
    gid_flow MLX5_AT_wqe_av_grh_gid_fl, rgid MLX5_AT_wqe_av_rgid
);
same!(
    NextSegment = MLX5_SIZE_wqe_srq_next_seg:
    reserved_0 MLX5_AT_wqe_srq_next_seg_rsvd0,
    next MLX5_AT_wqe_srq_next_seg_next_wqe_index, signature MLX5_AT_wqe_srq_next_seg_signature,
    reserved_5 MLX5_AT_wqe_srq_next_seg_rsvd1
);
same!(
    UmrControl = MLX5_SIZE_wqe_umr_ctrl_seg:
    flags MLX5_AT_wqe_umr_ctrl_seg_flags,
    reserved_1 MLX5_AT_wqe_umr_ctrl_seg_rsvd0, klm_octowords MLX5_AT_wqe_umr_ctrl_seg_klm_octowords,
    translation_offset MLX5_AT_wqe_umr_ctrl_seg_translation_offset,
    mkey_mask MLX5_AT_wqe_umr_ctrl_seg_mkey_mask, reserved_16 MLX5_AT_wqe_umr_ctrl_seg_rsvd1
);
same!(
    MkeyContext = MLX5_SIZE_wqe_mkey_context_seg:
    free MLX5_AT_wqe_mkey_context_seg_free,
    reserved_1 MLX5_AT_wqe_mkey_context_seg_reserved1, access MLX5_AT_wqe_mkey_context_seg_access_flags,
    sf MLX5_AT_wqe_mkey_context_seg_sf, qpn_mkey MLX5_AT_wqe_mkey_context_seg_qpn_mkey,
    reserved_8 MLX5_AT_wqe_mkey_context_seg_reserved2, flags_pd MLX5_AT_wqe_mkey_context_seg_flags_pd,
    start MLX5_AT_wqe_mkey_context_seg_start_addr, len MLX5_AT_wqe_mkey_context_seg_len,
    bsf_octowords MLX5_AT_wqe_mkey_context_seg_bsf_octword_size,
    reserved_36 MLX5_AT_wqe_mkey_context_seg_reserved3,
    translation_octowords MLX5_AT_wqe_mkey_context_seg_translations_octword_size,
    reserved_56 MLX5_AT_wqe_mkey_context_seg_reserved4,
    log_page_size MLX5_AT_wqe_mkey_context_seg_log_page_size,
    reserved_60 MLX5_AT_wqe_mkey_context_seg_reserved
);
same!(
    DataSegment = MLX5_SIZE_wqe_umr_klm_seg:
    byte_count MLX5_AT_wqe_umr_klm_seg_byte_count,
    lkey MLX5_AT_wqe_umr_klm_seg_mkey, address MLX5_AT_wqe_umr_klm_seg_address
);
same!(
    RepeatBlock = MLX5_SIZE_wqe_umr_repeat_block_seg:
    byte_count MLX5_AT_wqe_umr_repeat_block_seg_byte_count,
    op MLX5_AT_wqe_umr_repeat_block_seg_op, repeat_count MLX5_AT_wqe_umr_repeat_block_seg_repeat_count,
    reserved_12 MLX5_AT_wqe_umr_repeat_block_seg_reserved, entries MLX5_AT_wqe_umr_repeat_block_seg_num_ent
);
same!(
    RepeatEntry = MLX5_SIZE_wqe_umr_repeat_ent_seg:
    stride MLX5_AT_wqe_umr_repeat_ent_seg_stride,
    byte_count MLX5_AT_wqe_umr_repeat_ent_seg_byte_count, mkey MLX5_AT_wqe_umr_repeat_ent_seg_memkey,
    address MLX5_AT_wqe_umr_repeat_ent_seg_va
);
same!(
    Cqe = MLX5_SIZE_cqe64:
    reserved_0 MLX5_AT_cqe64_rsvd0, wqe_id MLX5_AT_cqe64_wqe_id,
    reserved_4 MLX5_AT_cqe64_rsvd4, ml_path MLX5_AT_cqe64_ml_path, reserved_18 MLX5_AT_cqe64_rsvd20,
    slid MLX5_AT_cqe64_slid, flags_rqpn MLX5_AT_cqe64_flags_rqpn, hds_ip_ext MLX5_AT_cqe64_hds_ip_ext,
    l4_hdr_type MLX5_AT_cqe64_l4_hdr_type_etc, vlan MLX5_AT_cqe64_vlan_info,
    srqn_uidx MLX5_AT_cqe64_srqn_uidx, imm_inval_pkey MLX5_AT_cqe64_imm_inval_pkey, app MLX5_AT_cqe64_app,
    app_op MLX5_AT_cqe64_app_op, app_info MLX5_AT_cqe64_app_info, byte_cnt MLX5_AT_cqe64_byte_cnt,
    timestamp MLX5_AT_cqe64_timestamp, sop_drop_qpn MLX5_AT_cqe64_sop_drop_qpn,
    wqe_counter MLX5_AT_cqe64_wqe_counter, signature MLX5_AT_cqe64_signature, op_own MLX5_AT_cqe64_op_own
);
same!(
    ErrorCqe = MLX5_SIZE_err_cqe:
    reserved_0 MLX5_AT_err_cqe_rsvd0, srqn_uidx MLX5_AT_err_cqe_srqn,
    reserved_36 MLX5_AT_err_cqe_rsvd1, vendor_syndrome MLX5_AT_err_cqe_vendor_err_synd,
    syndrome MLX5_AT_err_cqe_syndrome, opcode_qpn MLX5_AT_err_cqe_s_wqe_opcode_qpn,
    wqe_counter MLX5_AT_err_cqe_wqe_counter, signature MLX5_AT_err_cqe_signature,
    op_own MLX5_AT_err_cqe_op_own
);

equal! {
    SendOpcode::Nop, MLX5_OPCODE_NOP;
    SendOpcode::SendInvalidate, MLX5_OPCODE_SEND_INVAL;
    SendOpcode::RdmaWrite, MLX5_OPCODE_RDMA_WRITE;
    SendOpcode::RdmaWriteImm, MLX5_OPCODE_RDMA_WRITE_IMM;
    SendOpcode::Send, MLX5_OPCODE_SEND;
    SendOpcode::SendImm, MLX5_OPCODE_SEND_IMM;
    SendOpcode::RdmaRead, MLX5_OPCODE_RDMA_READ;
    SendOpcode::CompareSwap, MLX5_OPCODE_ATOMIC_CS;
    SendOpcode::FetchAdd, MLX5_OPCODE_ATOMIC_FA;
    SendOpcode::Umr, MLX5_OPCODE_UMR;
    fm_ce_se::SOLICITED, MLX5_WQE_CTRL_SOLICITED;
    fm_ce_se::CQ_UPDATE, MLX5_WQE_CTRL_CQ_UPDATE;
    fm_ce_se::SMALL_FENCE, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE;
    fm_ce_se::FENCE, MLX5_WQE_CTRL_FENCE;
    WQEBB, MLX5_SEND_WQE_BB;
    INVALID_LKEY, MLX5_INVALID_LKEY;
    INLINE_DATA, MLX5_INLINE_SEG;
    DBREC_RECEIVE, MLX5_RCV_DBR;
    DBREC_SEND, MLX5_SND_DBR;
    DatagramAddress::EXTENDED, MLX5_EXTENDED_UD_AV;
    // The short form ends before the fields that only a GRH needs (Linux: `struct mlx5_base_av`).
    DatagramAddress::BASE, MLX5_AT_wqe_av_reserved0;
    CqeOpcode::Requester, MLX5_CQE_REQ;
    CqeOpcode::ReceiveWriteImm, MLX5_CQE_RESP_WR_IMM;
    CqeOpcode::ReceiveSend, MLX5_CQE_RESP_SEND;
    CqeOpcode::ReceiveSendImm, MLX5_CQE_RESP_SEND_IMM;
    CqeOpcode::ReceiveSendInvalidate, MLX5_CQE_RESP_SEND_INV;
    CqeOpcode::Resize, MLX5_CQE_RESIZE_CQ;
    CqeOpcode::RequesterError, MLX5_CQE_REQ_ERR;
    CqeOpcode::ResponderError, MLX5_CQE_RESP_ERR;
    CqeOpcode::Invalid, MLX5_CQE_INVALID;
    cqe_headers::L3_OK, MLX5_CQE_L3_OK;
    cqe_headers::L4_OK, MLX5_CQE_L4_OK;
    cqe_headers::L3_IPV6, MLX5_CQE_L3_HDR_TYPE_IPV6;
    cqe_headers::L3_IPV4, MLX5_CQE_L3_HDR_TYPE_IPV4;
    cqe_owner::OWNER, MLX5_CQE_OWNER_MASK;
    cqe_owner::INLINE_32, MLX5_INLINE_SCATTER_32;
    cqe_owner::INLINE_64, MLX5_INLINE_SCATTER_64;
    Syndrome::LocalLength, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
    Syndrome::LocalQpOperation, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    Syndrome::LocalProtection, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
    Syndrome::Flushed, MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
    Syndrome::MemoryWindowBind, MLX5_CQE_SYNDROME_MW_BIND_ERR;
    Syndrome::BadResponse, MLX5_CQE_SYNDROME_BAD_RESP_ERR;
    Syndrome::LocalAccess, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR;
    Syndrome::RemoteInvalidRequest, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR;
    Syndrome::RemoteAccess, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
    Syndrome::RemoteOperation, MLX5_CQE_SYNDROME_REMOTE_OP_ERR;
    Syndrome::RetryExceeded, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
    Syndrome::RnrRetryExceeded, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR;
    Syndrome::RemoteAborted, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR;
    umr_flags::INLINE, MLX5_WQE_UMR_CTRL_FLAG_INLINE;
    umr_flags::CHECK_FREE, MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE;
    umr_flags::TRANSLATION_OFFSET, MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET;
    umr_flags::CHECK_QPN, MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN;
    mkey_mask::LEN, MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN;
    mkey_mask::START_ADDR, MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR;
    mkey_mask::MKEY, MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY;
    mkey_mask::QPN, MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN;
    mkey_mask::LOCAL_WRITE, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE;
    mkey_mask::REMOTE_READ, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ;
    mkey_mask::REMOTE_WRITE, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE;
    mkey_mask::ATOMIC, MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC;
    mkey_mask::FREE, MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE;
    mkey_access::LOCAL_READ, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_READ;
    mkey_access::LOCAL_WRITE, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE;
    mkey_access::REMOTE_READ, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ;
    mkey_access::REMOTE_WRITE, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE;
    mkey_access::ATOMIC, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC;
    MkeyContext::FREE, MLX5_WQE_MKEY_CONTEXT_FREE;
}
