// Errors as values. `Result<T>` has the names of std::expected, which GCC 12 offers only under C++23.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ckpt {

/// What kind of outcome a failure is. Closed: each one is an exit code that scripts branch on (`exit_code`).
enum class Code {
  kCorrupt,        ///< 1: damaged, cut short, or contradicting itself
  kMismatch,       ///< 1: sound, but not what was asked for: changed since, different, blocked
  kUsage,          ///< 2: bad flag, bad value, refused
  kPartial,        ///< 3: some parts succeeded
  kNotFound,       ///< 4: no such process, image, key
  kPermission,     ///< 5
  kUnsupported,    ///< 6: kernel, driver, format version, or a facility that is not handled
  kBusy,           ///< 7: locked, timed out
  kIo,             ///< 8: trying again may help
  kNoRoom,         ///< 9: disk, memory, descriptors
  kTargetAltered,  ///< 10: the target was left altered; the message says how and what undoes it
  kBug,            ///< 70
  kInterrupted,    ///< 130: the target was released first
};

int exit_code(Code code);
/// What was asked has been answered, with no: exit code 1.
constexpr bool answers_no(Code code) { return code == Code::kCorrupt || code == Code::kMismatch; }
/// The name scripts see in `--json` errors: "not-found", "no-room", ...
std::string_view code_name(Code code);

/// One failure: what failed (message), on what (subject), why (system errno or causes).
struct Error {
  Code code = Code::kBug;
  int sys_errno = 0;               ///< 0 when the cause is not a system call
  std::string subject;             ///< path, pid, key; may be empty. Not escaped: the printer does that
  std::string message;             ///< a clause without a full stop: "cannot open the manifest"
  std::string hint;                ///< at most one; empty is fine
  std::string target_state;        ///< the state a live target was left in; empty when none was touched
  std::vector<std::string> causes; ///< further lines: each blocker, each finding

  Error() = default;
  Error(Code c, std::string subj, std::string msg) : code(c), subject(std::move(subj)), message(std::move(msg)) {}

  Error&& with_hint(std::string text) && { hint = std::move(text); return std::move(*this); }
  Error&& with_cause(std::string text) && { causes.push_back(std::move(text)); return std::move(*this); }
  Error&& with_target(std::string text) && { target_state = std::move(text); return std::move(*this); }
  Error&& with_code(Code c) && { code = c; return std::move(*this); }

  /// "subject: message: No such file or directory", unescaped.
  std::string text() const;
};

/// An Error from `errno` (or `err`): ENOENT, ESRCH -> kNotFound; EPERM, EACCES -> kPermission; ENOSPC, EDQUOT, ENOMEM,
/// EMFILE, ENFILE -> kNoRoom; ENOSYS, EOPNOTSUPP -> kUnsupported; ENAMETOOLONG, EISDIR -> kUsage; EBUSY, ETIMEDOUT ->
/// kBusy; the rest -> kIo.
Error sys_error(std::string subject, std::string message);
Error sys_error(int err, std::string subject, std::string message);

/// Stops on a bug in ckpt itself: hostile input must never reach it.
[[noreturn]] void bug(const char* what, const char* file, int line);
#define CKPT_ASSERT(cond) ((cond) ? void(0) : ::ckpt::bug(#cond, __FILE__, __LINE__))

/// Carries an Error into a Result<T>, as std::unexpected does.
struct Unexpected {
  Error error;
  explicit Unexpected(Error e) : error(std::move(e)) {}
};
inline Unexpected fail(Error e) { return Unexpected(std::move(e)); }
inline Unexpected fail(Code c, std::string subject, std::string message) {
  return Unexpected(Error(c, std::move(subject), std::move(message)));
}

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Unexpected e) : state_(std::in_place_index<1>, std::move(e.error)) {}
  Result(Error e) : state_(std::in_place_index<1>, std::move(e)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { CKPT_ASSERT(has_value()); return std::get<0>(state_); }
  const T& value() const& { CKPT_ASSERT(has_value()); return std::get<0>(state_); }
  T&& value() && { CKPT_ASSERT(has_value()); return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T value_or(T other) const& { return has_value() ? std::get<0>(state_) : std::move(other); }
  Error& error() & { CKPT_ASSERT(!has_value()); return std::get<1>(state_); }
  const Error& error() const& { CKPT_ASSERT(!has_value()); return std::get<1>(state_); }
  Error&& error() && { CKPT_ASSERT(!has_value()); return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Unexpected e) : error_(std::move(e.error)), failed_(true) {}
  Result(Error e) : error_(std::move(e)), failed_(true) {}

  bool has_value() const { return !failed_; }
  explicit operator bool() const { return !failed_; }
  void value() const { CKPT_ASSERT(!failed_); }
  Error& error() & { CKPT_ASSERT(failed_); return error_; }
  const Error& error() const& { CKPT_ASSERT(failed_); return error_; }
  Error&& error() && { CKPT_ASSERT(failed_); return std::move(error_); }

 private:
  Error error_;
  bool failed_ = false;
};

// CKPT_TRY(expr): returns the error of a Result<void>. CKPT_TRY_ASSIGN(decl, expr): also binds the value.
#define CKPT_CONCAT_(a, b) a##b
#define CKPT_CONCAT(a, b) CKPT_CONCAT_(a, b)
#define CKPT_TRY(expr)                                                       \
  do {                                                                       \
    if (auto ckpt_try_ = (expr); !ckpt_try_) return ::ckpt::Unexpected(std::move(ckpt_try_).error()); \
  } while (0)
#define CKPT_TRY_ASSIGN_(tmp, decl, expr)                              \
  auto tmp = (expr);                                                   \
  if (!tmp) return ::ckpt::Unexpected(std::move(tmp).error());         \
  decl = std::move(tmp).value()
#define CKPT_TRY_ASSIGN(decl, expr) CKPT_TRY_ASSIGN_(CKPT_CONCAT(ckpt_res_, __LINE__), decl, expr)

}  // namespace ckpt
