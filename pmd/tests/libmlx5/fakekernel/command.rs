//! Requests of the libraries to the kernel. Nearly all are "write" commands inside the ioctl. Newer methods
//! are rejected as by an older kernel, and the libraries then use the commands.

use connectx::engine::QpAttributes;
use connectx::{Access, QpKind, RemoteOperations};
use ib_wire::Gid;
use pmd::hca::HcaError;
use uverbs_sys as abi;
use verbs_sys as verbs;

use super::answers::{attributes, get_context, query_port};
use super::device::{Device, Object, PORT, QpRecord, QueueRecord, host};
use super::words::Command;
use super::{modify, system, user};

pub(super) type Outcome = Result<(), i32>;

pub(super) fn errno(error: &HcaError) -> i32 {
    eprintln!("fake kernel: {error}");
    match error {
        HcaError::NotFound { .. } => libc::ENOENT,
        HcaError::Exhausted(_) => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

/// An ioctl.
///
/// # Safety
///
/// `header` is a request of the verbs interface: a header and the number of attributes in it.
pub(super) unsafe fn request(device: &mut Device, header: *mut abi::ib_uverbs_ioctl_hdr) -> Outcome {
    // SAFETY: by the contract of this function; the attributes follow the header.
    let (object, method, attributes) = unsafe {
        let first = (&raw mut (*header).attrs).cast::<abi::ib_uverbs_attr>();
        let count = usize::from((*header).num_attrs);
        ((*header).object_id, (*header).method_id, std::slice::from_raw_parts_mut(first, count))
    };
    match (u32::from(object), u32::from(method)) {
        (abi::MLX5_IB_OBJECT_DEVX | abi::MLX5_IB_OBJECT_DEVX_OBJ, _) if !device.settings.users => {
            Err(libc::EPROTONOSUPPORT)
        }
        (abi::MLX5_IB_OBJECT_DEVX, abi::MLX5_IB_METHOD_DEVX_OTHER) => user::query(attributes),
        (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_CREATE) => {
            user::create(device, attributes)
        }
        (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_DESTROY) => {
            user::destroy(device, attributes)
        }
        (abi::UVERBS_OBJECT_DEVICE, abi::UVERBS_METHOD_INVOKE_WRITE) => invoke_write(device, attributes),
        (abi::MLX5_IB_OBJECT_UAR, abi::MLX5_IB_METHOD_UAR_OBJ_ALLOC) => new_page(device, attributes),
        (abi::MLX5_IB_OBJECT_UAR, abi::MLX5_IB_METHOD_UAR_OBJ_DESTROY) => {
            let handle = find(attributes, abi::MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE).map(|a| data(a) as u32);
            device.objects.remove(&handle.ok_or(libc::EINVAL)?).map(drop).ok_or(libc::ENOENT)
        }
        _ => Err(libc::EPROTONOSUPPORT),
    }
}

pub(super) fn find(attributes: &mut [abi::ib_uverbs_attr], id: u32) -> Option<&mut abi::ib_uverbs_attr> {
    attributes.iter_mut().find(|a| u32::from(a.attr_id) == id)
}

pub(super) fn data(attribute: &abi::ib_uverbs_attr) -> u64 {
    // SAFETY: both views are a number of 64 bits.
    unsafe { attribute.__bindgen_anon_1.data }
}

fn out_number(attributes: &mut [abi::ib_uverbs_attr], id: u32, value: u64) -> Outcome {
    let attribute = find(attributes, id).ok_or(libc::EINVAL)?;
    attribute.flags |= abi::UVERBS_ATTR_F_VALID_OUTPUT as u16;
    let len = usize::from(attribute.len).min(8);
    // SAFETY: the library named this memory with this length.
    unsafe {
        std::ptr::copy_nonoverlapping(value.to_ne_bytes().as_ptr(), data(attribute) as *mut u8, len);
    }
    Ok(())
}

fn new_page(device: &mut Device, attributes: &mut [abi::ib_uverbs_attr]) -> Outcome {
    let kind = find(attributes, abi::MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE).map(|a| data(a) as u32);
    if kind == Some(abi::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF) && !device.settings.write_combining {
        return Err(libc::EOPNOTSUPP);
    }
    let number = device.new_page().ok_or(libc::ENOSPC)?;
    let handle = device.add(Object::Page);
    let place = find(attributes, abi::MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE).ok_or(libc::EINVAL)?;
    place.__bindgen_anon_1.data = handle.into();
    out_number(attributes, abi::MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, u64::from(number) << 12)?;
    out_number(attributes, abi::MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4096)?;
    out_number(attributes, abi::MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, number.into())
}

fn invoke_write(device: &mut Device, attributes: &mut [abi::ib_uverbs_attr]) -> Outcome {
    let number = data(find(attributes, abi::UVERBS_ATTR_WRITE_CMD).ok_or(libc::EINVAL)?) as u32;
    let mut place = |id, output: bool| -> (u64, usize) {
        let Some(attribute) = find(attributes, id) else { return (8, 0) };
        if output {
            attribute.flags |= abi::UVERBS_ATTR_F_VALID_OUTPUT as u16;
        } else if attribute.len <= 8 {
            // Up to eight bytes travel within the attribute.
            return (std::ptr::from_ref(attribute.as_data()) as u64, attribute.len.into());
        }
        (data(attribute), attribute.len.into())
    };
    let command = Command {
        input: place(abi::UVERBS_ATTR_CORE_IN, false),
        own_input: place(abi::UVERBS_ATTR_UHW_IN, false),
        output: place(abi::UVERBS_ATTR_CORE_OUT, true),
        own_output: place(abi::UVERBS_ATTR_UHW_OUT, true),
    };
    dispatch(device, number, &command)
}

trait AsData {
    fn as_data(&self) -> &u64;
}

impl AsData for abi::ib_uverbs_attr {
    fn as_data(&self) -> &u64 {
        // SAFETY: both views are a number of 64 bits.
        unsafe { &self.__bindgen_anon_1.data }
    }
}

const EXTENDED: u32 = abi::REQUEST_EXTENDED;
const EX_QUERY_DEVICE: u32 = EXTENDED | abi::IB_USER_VERBS_EX_CMD_QUERY_DEVICE;
const EX_CREATE_CQ: u32 = EXTENDED | abi::IB_USER_VERBS_EX_CMD_CREATE_CQ;
const EX_CREATE_QP: u32 = EXTENDED | abi::IB_USER_VERBS_EX_CMD_CREATE_QP;
const EX_MODIFY_QP: u32 = EXTENDED | abi::IB_USER_VERBS_EX_CMD_MODIFY_QP;

fn dispatch(device: &mut Device, number: u32, c: &Command) -> Outcome {
    match number {
        abi::IB_USER_VERBS_CMD_GET_CONTEXT => get_context(device, c),
        // A query without input checks for the newer form.
        abi::IB_USER_VERBS_CMD_QUERY_DEVICE if c.input.1 == 0 => return Err(libc::ENOSPC),
        abi::IB_USER_VERBS_CMD_QUERY_DEVICE => c.answer(&attributes(device)),
        EX_QUERY_DEVICE => {
            c.answer(&abi::ib_uverbs_ex_query_device_resp {
                base: attributes(device),
                response_length: size_of::<abi::ib_uverbs_ex_query_device_resp>() as u32,
                ..Default::default()
            });
            c.own_answer(&abi::mlx5_ib_query_device_resp {
                response_length: size_of::<abi::mlx5_ib_query_device_resp>() as u32,
                ..Default::default()
            });
        }
        abi::IB_USER_VERBS_CMD_QUERY_PORT => query_port(device, c)?,
        abi::IB_USER_VERBS_CMD_ALLOC_PD => {
            let pd_handle = device.add(Object::Domain);
            c.answer(&abi::ib_uverbs_alloc_pd_resp { pd_handle, ..Default::default() });
            c.own_answer(&abi::mlx5_ib_alloc_pd_resp { pdn: pd_handle });
        }
        abi::IB_USER_VERBS_CMD_DEALLOC_PD => {
            remove(device, c.input::<abi::ib_uverbs_dealloc_pd>().pd_handle)?;
        }
        abi::IB_USER_VERBS_CMD_REG_MR => reg_mr(device, c)?,
        abi::IB_USER_VERBS_CMD_DEREG_MR => {
            if let Object::Memory(key) = remove(device, c.input::<abi::ib_uverbs_dereg_mr>().mr_handle)? {
                device.engine.deregister(key).map_err(|e| errno(&e))?;
            }
        }
        abi::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => {
            let (theirs, ours) = system::pipe();
            device.channels.push((theirs, ours));
            c.answer(&abi::ib_uverbs_create_comp_channel_resp { fd: theirs as u32 });
        }
        abi::IB_USER_VERBS_CMD_CREATE_CQ => {
            let q: abi::ib_uverbs_create_cq = c.input();
            let r = create_cq(device, c, (q.user_handle, q.comp_channel), q.cqe)?;
            c.answer(&r);
        }
        EX_CREATE_CQ => {
            let q: abi::ib_uverbs_ex_create_cq = c.input();
            let base = create_cq(device, c, (q.user_handle, q.comp_channel), q.cqe)?;
            let response_length = size_of::<abi::ib_uverbs_ex_create_cq_resp>() as u32;
            c.answer(&abi::ib_uverbs_ex_create_cq_resp { base, response_length, ..Default::default() });
        }
        abi::IB_USER_VERBS_CMD_DESTROY_CQ => {
            if let Object::Cq(cq) = remove(device, c.input::<abi::ib_uverbs_destroy_cq>().cq_handle)? {
                device.engine.destroy_cq(cq.number).map_err(|e| errno(&e))?;
                // The number of fetched events: the library waits until that number is acknowledged.
                let left = device.channels.iter().find(|(_, ours)| Some(*ours) == cq.channel);
                let comp_events_reported = cq.reported - left.map_or(0, |(theirs, _)| system::drain(*theirs));
                c.answer(&abi::ib_uverbs_destroy_cq_resp { comp_events_reported, ..Default::default() });
            }
        }
        abi::IB_USER_VERBS_CMD_CREATE_SRQ => create_srq(device, c)?,
        abi::IB_USER_VERBS_CMD_MODIFY_SRQ => {
            let q: abi::ib_uverbs_modify_srq = c.input();
            let Some(Object::Srq(srq)) = device.objects.get(&q.srq_handle) else { return Err(libc::ENOENT) };
            if q.attr_mask & verbs::IBV_SRQ_LIMIT != 0 {
                let limit = u16::try_from(q.srq_limit).map_err(|_| libc::EINVAL)?;
                device.engine.arm_srq(srq.number, limit).map_err(|e| errno(&e))?;
            }
        }
        abi::IB_USER_VERBS_CMD_DESTROY_SRQ => {
            if let Object::Srq(srq) = remove(device, c.input::<abi::ib_uverbs_destroy_srq>().srq_handle)? {
                device.engine.destroy_srq(srq.number).map_err(|e| errno(&e))?;
                let events_reported = device.end_events(srq.user_handle);
                c.answer(&abi::ib_uverbs_destroy_srq_resp { events_reported });
            }
        }
        abi::IB_USER_VERBS_CMD_CREATE_QP => {
            let q: abi::ib_uverbs_create_qp = c.input();
            let r = create_qp(
                device,
                c,
                &abi::ib_uverbs_ex_create_qp {
                    user_handle: q.user_handle,
                    pd_handle: q.pd_handle,
                    send_cq_handle: q.send_cq_handle,
                    recv_cq_handle: q.recv_cq_handle,
                    srq_handle: q.srq_handle,
                    max_send_wr: q.max_send_wr,
                    max_recv_wr: q.max_recv_wr,
                    max_send_sge: q.max_send_sge,
                    max_recv_sge: q.max_recv_sge,
                    max_inline_data: q.max_inline_data,
                    sq_sig_all: q.sq_sig_all,
                    qp_type: q.qp_type,
                    is_srq: q.is_srq,
                    ..Default::default()
                },
            )?;
            c.answer(&r);
        }
        EX_CREATE_QP => {
            let base = create_qp(device, c, &c.input())?;
            let response_length = size_of::<abi::ib_uverbs_ex_create_qp_resp>() as u32;
            c.answer(&abi::ib_uverbs_ex_create_qp_resp { base, response_length, ..Default::default() });
        }
        abi::IB_USER_VERBS_CMD_MODIFY_QP => modify_qp(device, &c.input())?,
        EX_MODIFY_QP => modify_qp(device, &c.input::<abi::ib_uverbs_ex_modify_qp>().base)?,
        abi::IB_USER_VERBS_CMD_QUERY_QP => {
            let qp = *qp(device, c.input::<abi::ib_uverbs_query_qp>().qp_handle)?;
            let state = modify::state(device.engine.qp_state(qp.qpn).map_err(|e| errno(&e))?);
            c.answer(&abi::ib_uverbs_query_qp_resp {
                qp_state: state,
                cur_qp_state: state,
                ..Default::default()
            });
        }
        abi::IB_USER_VERBS_CMD_DESTROY_QP if device.keeps_queue_pairs => return Err(libc::EBUSY),
        abi::IB_USER_VERBS_CMD_DESTROY_QP => {
            if let Object::Qp(qp) = remove(device, c.input::<abi::ib_uverbs_destroy_qp>().qp_handle)? {
                // Silently: outstanding work no longer completes.
                device.engine.modify_qp(qp.qpn, &pmd::hca::QpTransition::ToReset).map_err(|e| errno(&e))?;
                device.engine.destroy_qp(qp.qpn).map_err(|e| errno(&e))?;
                let events_reported = device.end_events(qp.user_handle);
                c.answer(&abi::ib_uverbs_destroy_qp_resp { events_reported });
            }
        }
        abi::IB_USER_VERBS_CMD_CREATE_AH => {
            let ah_handle = device.add(Object::Address);
            c.answer(&abi::ib_uverbs_create_ah_resp { ah_handle, ..Default::default() });
            let response_length = size_of::<abi::mlx5_ib_create_ah_resp>() as u32;
            c.own_answer(&abi::mlx5_ib_create_ah_resp { response_length, ..Default::default() });
        }
        abi::IB_USER_VERBS_CMD_DESTROY_AH => {
            remove(device, c.input::<abi::ib_uverbs_destroy_ah>().ah_handle)?;
        }
        abi::IB_USER_VERBS_CMD_ATTACH_MCAST | abi::IB_USER_VERBS_CMD_DETACH_MCAST => {
            let q: abi::ib_uverbs_attach_mcast = c.input();
            let qpn = qp(device, q.qp_handle)?.qpn;
            let done = match number {
                abi::IB_USER_VERBS_CMD_ATTACH_MCAST => device.engine.attach_multicast(qpn, Gid(q.gid)),
                _ => device.engine.detach_multicast(qpn, Gid(q.gid)),
            };
            done.map_err(|e| errno(&e))?;
        }
        _ => {
            eprintln!("fake kernel: command {number:#x} is unknown");
            return Err(libc::EOPNOTSUPP);
        }
    }
    Ok(())
}

fn remove(device: &mut Device, handle: u32) -> Result<Object, i32> {
    device.objects.remove(&handle).ok_or(libc::ENOENT)
}

fn qp(device: &Device, handle: u32) -> Result<&QpRecord, i32> {
    match device.objects.get(&handle) {
        Some(Object::Qp(qp)) => Ok(qp),
        _ => Err(libc::ENOENT),
    }
}

fn reg_mr(device: &mut Device, c: &Command) -> Outcome {
    let q: abi::ib_uverbs_reg_mr = c.input();
    let may = |flag: u32| q.access_flags & flag != 0;
    let access = Access {
        local_write: may(verbs::IBV_ACCESS_LOCAL_WRITE),
        remote_write: may(verbs::IBV_ACCESS_REMOTE_WRITE),
        remote_read: may(verbs::IBV_ACCESS_REMOTE_READ),
        remote_atomic: may(verbs::IBV_ACCESS_REMOTE_ATOMIC),
    };
    let memory = host(q.start, q.length as usize);
    let key = device.engine.register(q.hca_va, memory, access).map_err(|e| errno(&e))?;
    let mr_handle = device.add(Object::Memory(key));
    c.answer(&abi::ib_uverbs_reg_mr_resp { mr_handle, lkey: key, rkey: key, ..Default::default() });
    Ok(())
}

fn create_cq(
    device: &mut Device,
    c: &Command,
    (user_handle, channel): (u64, i32),
    cqe: u32,
) -> Result<abi::ib_uverbs_create_cq_resp, i32> {
    let own: abi::mlx5_ib_create_cq = c.own();
    let entries = cqe + 1;
    let number = if own.cqe_size == 64 {
        let ring = host(own.buf_addr, entries as usize * 64);
        device.engine.create_cq(ring, host(own.db_addr, 8)).map_err(|e| errno(&e))?
    } else {
        // Larger ones are only for tests that check their rejection; the engine does not write them.
        let ring = host(own.buf_addr, 64);
        device.engine.create_cq(ring, host(own.db_addr, 8)).map_err(|e| errno(&e))?
    };
    let handle = device.add(Object::Cq(QueueRecord {
        number,
        entries,
        stride: own.cqe_size,
        buf: own.buf_addr,
        dbrec: own.db_addr,
        user_handle,
        channel: device.channels.iter().find(|(theirs, _)| *theirs == channel).map(|(_, ours)| *ours),
        armed: None,
        reported: 0,
    }));
    c.own_answer(&abi::mlx5_ib_create_cq_resp { cqn: number, ..Default::default() });
    Ok(abi::ib_uverbs_create_cq_resp { cq_handle: handle, cqe, ..Default::default() })
}

fn create_srq(device: &mut Device, c: &Command) -> Outcome {
    let (q, own): (abi::ib_uverbs_create_srq, abi::mlx5_ib_create_srq) = (c.input(), c.own());
    // The number of slots is a power of two. Each slot contains the link and the segments.
    let entries = (q.max_wr + 1).next_power_of_two();
    let stride = (16 + 16 * q.max_sge.max(1)).next_power_of_two();
    let ring = host(own.buf_addr, (entries * stride) as usize);
    // Its record has one word; the engine requires room for two.
    let number =
        device.engine.create_srq(ring, stride as usize, host(own.db_addr, 8)).map_err(|e| errno(&e))?;
    let srq_handle = device.add(Object::Srq(QueueRecord {
        number,
        entries,
        stride,
        buf: own.buf_addr,
        dbrec: own.db_addr,
        user_handle: q.user_handle,
        channel: None,
        armed: None,
        reported: 0,
    }));
    let (max_wr, max_sge, srqn) = (q.max_wr, q.max_sge, number);
    c.answer(&abi::ib_uverbs_create_srq_resp { srq_handle, max_wr, max_sge, srqn, ..Default::default() });
    c.own_answer(&abi::mlx5_ib_create_srq_resp { srqn: number, ..Default::default() });
    Ok(())
}

fn create_qp(
    device: &mut Device,
    c: &Command,
    q: &abi::ib_uverbs_ex_create_qp,
) -> Result<abi::ib_uverbs_create_qp_resp, i32> {
    let own: abi::mlx5_ib_create_qp = c.own();
    let cq = |handle| match device.objects.get(&handle) {
        Some(Object::Cq(cq)) => Ok(cq.number),
        _ => Err(libc::ENOENT),
    };
    let (send_cq, recv_cq) = (cq(q.send_cq_handle)?, cq(q.recv_cq_handle)?);
    let srq = match (q.is_srq, device.objects.get(&q.srq_handle)) {
        (0, _) => None,
        (_, Some(Object::Srq(srq))) => Some(srq.number),
        _ => return Err(libc::ENOENT),
    };
    let rq = if own.rq_wqe_count > 0 { (own.rq_wqe_count, 1 << own.rq_wqe_shift) } else { (0, 0) };
    let rq_bytes = (rq.0 * rq.1) as usize;
    let kind = match u32::from(q.qp_type) {
        verbs::IBV_QPT_RC => QpKind::Rc,
        verbs::IBV_QPT_UD => QpKind::Ud,
        _ => return Err(libc::EOPNOTSUPP),
    };
    if kind == QpKind::Ud && srq.is_some() && device.shares_no_datagrams {
        return Err(libc::EINVAL);
    }
    let sq_buf = own.buf_addr + rq_bytes as u64;
    let qpn = device.engine.create_qp(&QpAttributes {
        kind,
        port: PORT,
        send_ring: host(sq_buf, own.sq_wqe_count as usize * 64).into(),
        receive_ring: (rq_bytes > 0).then(|| (host(own.buf_addr, rq_bytes).into(), rq.1 as usize)),
        srq,
        dbrec: host(own.db_addr, 8),
        send_cq,
        recv_cq,
        user_index: own.uidx,
    });
    let qpn = qpn.map_err(|e| errno(&e))?;
    device.made.insert(qpn.get());
    let qp_handle = device.add(Object::Qp(QpRecord {
        qpn,
        sq_wqebbs: own.sq_wqe_count,
        rq,
        buf: own.buf_addr,
        dbrec: own.db_addr,
        flags: own.flags,
        user_handle: q.user_handle,
        remote: RemoteOperations::default(),
    }));
    c.own_answer(&abi::mlx5_ib_create_qp_resp { bfreg_index: own.bfreg_index, ..Default::default() });
    Ok(abi::ib_uverbs_create_qp_resp {
        qp_handle,
        qpn: qpn.get(),
        max_send_wr: q.max_send_wr,
        max_recv_wr: q.max_recv_wr,
        max_send_sge: q.max_send_sge,
        max_recv_sge: q.max_recv_sge,
        max_inline_data: q.max_inline_data,
        ..Default::default()
    })
}

fn modify_qp(device: &mut Device, q: &abi::ib_uverbs_modify_qp) -> Outcome {
    let Some(Object::Qp(qp)) = device.objects.get_mut(&q.qp_handle) else { return Err(libc::ENOENT) };
    modify::remote(q, &mut qp.remote);
    let (qpn, remote) = (qp.qpn, qp.remote);
    device.engine.set_remote_operations(qpn, remote).map_err(|e| errno(&e))?;
    match modify::transition(q) {
        Some(to) => device.engine.modify_qp(qpn, &to).map_err(|e| errno(&e)),
        None => Err(libc::EINVAL),
    }
}
