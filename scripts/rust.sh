# shellcheck shell=bash
# Sourced: puts Rust's programs into the path. Under sudo the toolchain of the calling user serves where root has none; packages from the
# registry still go to root's own directory, so that nothing in the user's is root's.
export PATH="$HOME/.cargo/bin:$PATH"
if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ] && ! command -v cargo >/dev/null; then
    # A root of another system may not know the user.
    user_home=$(getent passwd "$SUDO_USER" | cut -d: -f6) || user_home=
    channel=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
    # Only with the toolchain in it: rustup would install that as root.
    if [ -x "$user_home/.cargo/bin/cargo" ] && compgen -G "$user_home/.rustup/toolchains/$channel-*" >/dev/null; then
        export PATH="$PATH:$user_home/.cargo/bin" RUSTUP_HOME="${RUSTUP_HOME:-$user_home/.rustup}"
    fi
    unset user_home channel
fi
