// What this process was started with for the signals that it handles itself, for a program that it becomes.
#pragma once

namespace ckpt::cli {

/// Before any handler is installed.
void remember_signals();
/// As they were remembered; right before an exec.
void restore_signals();

}  // namespace ckpt::cli
