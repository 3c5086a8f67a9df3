"""Extracts the plain ELF from a kernel image for x86: vmlinux.py BZIMAGE VMLINUX.

Decompression in the emulated guest would take seconds. The header of the image has the offset of the
compressed kernel (Documentation/arch/x86/boot.rst).
"""
import lzma
import struct
import subprocess
import sys


def main() -> int:
    """Writes the ELF file; returns 1 if the format is unknown."""
    with open(sys.argv[1], "rb") as file:
        image = file.read()
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (image[0x1F1] + 1) * 512 + offset
    # The last four octets are the uncompressed size.
    packed = image[start:start + length - 4]
    if packed.startswith(b"\xfd7zXZ\0"):
        kernel = lzma.LZMADecompressor().decompress(packed)
    elif packed.startswith(b"\x28\xb5\x2f\xfd"):
        kernel = subprocess.run(["zstd", "-dc"], input=packed, stdout=subprocess.PIPE, check=True).stdout
    else:
        kernel = b""
    if not kernel.startswith(b"\x7fELF"):
        print(f"{sys.argv[1]}: no kernel found (unknown compression format)", file=sys.stderr)
        return 1
    with open(sys.argv[2], "wb") as file:
        file.write(kernel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
