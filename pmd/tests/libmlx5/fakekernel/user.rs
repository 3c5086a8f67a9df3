//! User-level commands (DEVX): device capabilities, and free keys for lists of keys.

use connectx::{Access, FastKey, ListKind, ProtectionDomain};
use prm::capability::{GENERAL, general};
use prm::command::{CONTEXT, InputHeader, OutputHeader, opcode};
use prm::{MkeyContext, mkey_access, mkey_flags};
use uverbs_sys as abi;
use zerocopy::{FromBytes, IntoBytes};

use super::command::{Outcome, data, errno, find};
use super::device::{Device, Object};

/// Binary logarithm of the maximum number of pieces of a key.
const LOG_MAX_LIST: u64 = 12;

/// Returns the memory that the library passed for a command.
fn place(attributes: &mut [abi::ib_uverbs_attr], id: u32) -> Result<&mut [u8], i32> {
    let attribute = find(attributes, id).ok_or(libc::EINVAL)?;
    // SAFETY: the library gave this memory with this length, which is longer than data that fits into the
    // attribute.
    Ok(unsafe { std::slice::from_raw_parts_mut(data(attribute) as *mut u8, attribute.len.into()) })
}

/// Executes a command that creates nothing.
pub(super) fn query(attributes: &mut [abi::ib_uverbs_attr]) -> Outcome {
    let input = place(attributes, abi::MLX5_IB_ATTR_DEVX_OTHER_CMD_IN)?;
    let (header, _) = InputHeader::read_from_prefix(input).map_err(|_| libc::EINVAL)?;
    if header.opcode.get() != opcode::QUERY_HCA_CAP {
        return Err(libc::EINVAL);
    }
    let output = place(attributes, abi::MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT)?;
    output.fill(0);
    if header.modifier.get() >> 1 == GENERAL {
        let general = output.get_mut(size_of::<OutputHeader>()..).unwrap_or_default();
        general::LOG_MAX_KLM_LIST.set(general, LOG_MAX_LIST);
    }
    Ok(())
}

/// Executes a command that creates an object: a key.
pub(super) fn create(device: &mut Device, attributes: &mut [abi::ib_uverbs_attr]) -> Outcome {
    let key = create_key(device, place(attributes, abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN)?)?;
    let handle = device.add(Object::Memory(key));
    let header = OutputHeader { number: (key >> 8).into(), ..OutputHeader::default() };
    let output = place(attributes, abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT)?;
    header.write_to_prefix(output).map_err(|_| libc::EINVAL)?;
    find(attributes, abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE).ok_or(libc::EINVAL)?.__bindgen_anon_1.data =
        handle.into();
    Ok(())
}

/// Destroys such an object.
pub(super) fn destroy(device: &mut Device, attributes: &mut [abi::ib_uverbs_attr]) -> Outcome {
    if device.keeps_keys {
        return Err(libc::EBUSY);
    }
    let handle = find(attributes, abi::MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE).map(|a| data(a) as u32);
    match device.objects.remove(&handle.ok_or(libc::EINVAL)?) {
        Some(Object::Memory(key)) => device.engine.deregister(key).map_err(|e| errno(&e)),
        _ => Err(libc::ENOENT),
    }
}

/// Creates a key as the firmware does for a program, without memory.
fn create_key(device: &mut Device, input: &[u8]) -> Result<u32, i32> {
    let (header, _) = InputHeader::read_from_prefix(input).map_err(|_| libc::EINVAL)?;
    let context = input.get(CONTEXT..).unwrap_or_default();
    let (context, _) = MkeyContext::read_from_prefix(context).map_err(|_| libc::EINVAL)?;
    let lists_keys = context.access & MkeyContext::MODE == MkeyContext::MODE_KEYS;
    let by_work = context.free & MkeyContext::FREE != 0 && context.access & mkey_access::UMR != 0;
    if header.opcode.get() != opcode::CREATE_MKEY || !lists_keys || !by_work {
        return Err(libc::EINVAL);
    }
    let how = FastKey {
        tag: context.qpn_mkey.get() as u8,
        domain: ProtectionDomain::default(),
        list: ListKind::Keys,
        octowords: context.translation_octowords.get() as usize,
        access: Access::default(),
        remote_invalidate: context.flags_pd.get() & mkey_flags::REMOTE_INVALIDATE != 0,
    };
    device.engine.create_fast_key(&how).map_err(|e| errno(&e))
}
