# shellcheck shell=bash
# Sourced: puts Rust's programs into the path. Under sudo the toolchain of the calling user serves where root has none; packages from the
# registry still go to root's own directory, so that nothing in the user's is root's.
export PATH="$HOME/.cargo/bin:$PATH"
if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ] && ! command -v cargo >/dev/null; then
    user_home=$(getent passwd "$SUDO_USER" | cut -d: -f6)
    if [ -x "$user_home/.cargo/bin/cargo" ]; then
        export PATH="$PATH:$user_home/.cargo/bin" RUSTUP_HOME="${RUSTUP_HOME:-$user_home/.rustup}"
    fi
    unset user_home
fi
