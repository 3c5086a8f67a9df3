//! Fast-registration keys created by libmlx5.

use std::collections::BTreeSet;

use pmd::hca::{Backend, Control, FastRegistration, RegisteredBy};

use crate::fakekernel;
use crate::rig::{Mlx5, closed_world, open, world};

fn keys() -> usize {
    fakekernel::with(0, |device| device.census()[1])
}

#[test]
fn keys_are_made_within_the_devices_limits_and_go_with_the_device() {
    let world = world();
    let mut hca: Mlx5 = open(0);
    let limits = hca.device().fast_registration;
    let lists = FastRegistration {
        by: RegisteredBy::Umr,
        max_pieces: 4096,
        remote_invalidate: true,
        read_invalidate: false,
    };
    assert_eq!(limits, Some(lists));
    assert_eq!(keys(), 0, "the key of the probe is destroyed");
    for pieces in [0, 4097, u32::MAX] {
        let text = hca.create_key(pieces).unwrap_err().to_string();
        assert!(text.contains("pieces of a memory key") && text.contains("1 to 4096"), "{text}");
    }
    // The padding of a list fits too.
    let mut made: Vec<_> = [1, 3, 4, 53, 4095, 4096].map(|pieces| hca.create_key(pieces).unwrap()).into();
    assert_eq!(made.iter().map(|key| key.pieces()).collect::<Vec<_>>(), [1, 3, 4, 53, 4095, 4096]);
    assert_eq!(made.iter().map(|key| key.key().index()).collect::<BTreeSet<_>>().len(), made.len());
    assert_eq!(keys(), made.len());
    hca.destroy_key(made.remove(0)).unwrap();
    assert_eq!(keys(), made.len());
    drop(hca);
    assert_eq!(keys(), 0, "keys that were not returned");
    world.end();
}

#[test]
fn a_key_of_another_device_is_none_here() {
    let world = world();
    let [mut one, mut other]: [Mlx5; 2] = [open(0), open(1)];
    let keys = [(); 3].map(|()| one.create_key(1).unwrap());
    for key in keys {
        let text = other.destroy_key(key).unwrap_err().to_string();
        assert!(text.contains("memory key"), "{text}");
    }
    drop((one, other));
    world.end();
}

#[test]
fn an_unreleased_key_is_reported() {
    let world = world();
    let mut hca: Mlx5 = open(0);
    let key = hca.create_key(2).unwrap();
    fakekernel::with(0, |device| device.keeps_keys = true);
    let text = hca.destroy_key(key).unwrap_err().to_string();
    assert!(text.contains("destroying a memory key"), "{text}");
    fakekernel::with(0, |device| device.keeps_keys = false);
    // Others can be created. It stays until the kernel closes the device, which the fake kernel does not do.
    hca.create_key(2).unwrap();
    drop(hca);
    assert_eq!(keys(), 1);
    drop(world);
}

#[test]
fn where_programs_make_no_keys_the_error_says_what_to_do() {
    let world = closed_world();
    let mut hca: Mlx5 = open(0);
    assert_eq!(hca.device().fast_registration, None);
    let text = hca.create_key(1).unwrap_err().to_string();
    for word in ["mlx5_0", "UCTX_EN", "--users", "--hca-driver verbs"] {
        assert!(text.contains(word), "{text}");
    }
    drop(hca);
    world.end();
}
