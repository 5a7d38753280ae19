// Sanitizers make each step some twenty times as long: what is repeated for every byte or every case takes a sample
// then.
#pragma once

namespace ckpt::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// It keeps a thread of its own in every process, and most addresses for itself.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

}  // namespace ckpt::test
