//! Frames and rings of AF_PACKET ports, from the arguments of `--vdev`.

use crate::eal::{EalArguments, is_af_packet};
use crate::error::ConfigError;

/// The driver's defaults for omitted arguments if another ring argument is given.
const FRAME: u32 = 2048;
const BLOCK: u32 = 4096;
const FRAMES: u32 = 512;
/// Alignment of frames, and of blocks to pages (packet_mmap).
const ALIGNMENT: u32 = 16;
const PAGE: u32 = 4096;
/// Maximum value of `buffers.data-room`.
const MOST_ROOM: u32 = 16_384;
/// Bytes of a frame that the driver does not count when it compares it with a buffer.
const FRAME_HEADER: u32 = 32;

/// The rings of a port.
struct Rings {
    frame: u32,
    block: u32,
    frames: u32,
}

impl Rings {
    /// Parses the rings of a `--vdev`. Returns `None` if it leaves them to the gateway. Invalid numbers are
    /// 0, as in the driver.
    fn of(vdev: &str) -> Option<Self> {
        let option = |name: &str| {
            let text = vdev.split(',').find_map(|option| option.strip_prefix(name));
            text.map(|number| number.parse().unwrap_or(0))
        };
        let (frame, block, frames) = (option("framesz="), option("blocksz="), option("framecnt="));
        (frame.is_some() || block.is_some() || frames.is_some()).then(|| Self {
            frame: frame.unwrap_or(FRAME),
            block: block.unwrap_or(BLOCK),
            frames: frames.unwrap_or(FRAMES),
        })
    }

    /// Returns the reason why the kernel or the driver rejects the rings, and a remedy.
    fn fault(&self, data_room: u16) -> Option<(String, String)> {
        let &Self { frame, block, frames } = self;
        let most = u32::from(data_room) + FRAME_HEADER;
        let multiple = |number: u32, of: u32| number > 0 && of > 0 && number.is_multiple_of(of);
        if !multiple(frame, ALIGNMENT) {
            let what = format!("framesz={frame} is not a multiple of {ALIGNMENT}");
            return Some((what, "write a power of two, for example framesz=4096".to_owned()));
        }
        if frame > most {
            let what =
                format!("frames of framesz={frame} do not fit packet buffers of data-room = {data_room}");
            let remedy = match frame.checked_next_power_of_two() {
                Some(power) if power <= MOST_ROOM => {
                    format!("write a smaller framesz, or data-room = {power} into [buffers]")
                }
                _ => "write a smaller framesz".to_owned(),
            };
            return Some((what, remedy));
        }
        if !multiple(block, PAGE) || !multiple(block, frame) {
            let what = format!("blocksz={block} is not a multiple of {PAGE} and of framesz={frame}");
            let fits = frame.max(PAGE).next_power_of_two().max(1 << 16);
            return Some((what, format!("write for example blocksz={fits}, with a power of two as framesz")));
        }
        let in_block = block / frame;
        (!multiple(frames, in_block)).then(|| {
            let what = format!("framecnt={frames} is not a multiple of the {in_block} frames of a block");
            (what, format!("write for example framecnt={}", (FRAMES / in_block + 1) * in_block))
        })
    }
}

impl EalArguments {
    /// Returns all errors of AF_PACKET rings, whose frames go into buffers of `data_room` bytes.
    #[must_use]
    pub fn ring_faults(&self, data_room: u16) -> Vec<ConfigError> {
        let ports = self.vdevs.iter().filter(|vdev| is_af_packet(vdev));
        let faults = ports.filter_map(|vdev| {
            let (what, remedy) = Rings::of(vdev)?.fault(data_room)?;
            let name = vdev.split(',').next().unwrap_or_default();
            Some(ConfigError::command_line(format!("--vdev {name}: {what}"), remedy))
        });
        faults.collect()
    }
}

/// Returns the frame length of an AF_PACKET port: that of its `--vdev`, or the length of a buffer of
/// `data_room` bytes.
#[must_use]
pub fn frame_of(vdev: &str, data_room: u16) -> u32 {
    Rings::of(vdev).map_or_else(|| 1 << data_room.max(1).ilog2(), |rings| rings.frame)
}
