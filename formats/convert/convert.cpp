#include "formats/convert/convert.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <charconv>

#include "formats/format.h"
#include "formats/torch_dist/writer.h"
#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/base/text.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

/// Whether `path` is `folder` or lies below it; both canonical.
bool is_within(const fs::path& path, const fs::path& folder) {
  auto a = path.begin();
  for (auto b = folder.begin(); b != folder.end(); ++a, ++b) {
    if (b->empty()) continue;  // a trailing slash
    if (a == path.end() || *a != *b) return false;
  }
  return true;
}

Result<void> check_places(const fs::path& source, const fs::path& destination) {
  std::error_code ec;
  const fs::path from = fs::canonical(source, ec);
  if (ec) return sys_error(ec.value(), source.string(), "cannot resolve");
  const fs::path to = fs::weakly_canonical(fs::absolute(destination, ec), ec);
  if (ec) return sys_error(ec.value(), destination.string(), "cannot resolve");
  if (is_within(to, from)) return fail(Code::kUsage, destination.string(), "lies inside the source");
  if (is_within(from, to)) return fail(Code::kUsage, destination.string(), "holds the source");
  const fs::path parent = to.parent_path();
  if (!fs::is_directory(parent, ec)) return fail(Code::kNotFound, parent.string(), "no such folder to write into");
  return {};
}

Result<void> check_room(const fs::path& folder, uint64_t bytes) {
  struct statvfs st{};
  if (::statvfs(folder.c_str(), &st) != 0) return sys_error(folder.string(), "cannot tell the free space");
  const uint64_t room = static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
  if (room >= bytes) return {};
  return fail(Code::kNoRoom, folder.string(),
              fmt::format("has {} free, the checkpoint needs {}", human_bytes(room), human_bytes(bytes)));
}

/// mkdtemp's 0700 becomes what mkdir would have given: checkpoints are shared as other files are.
Result<void> apply_umask(const fs::path& folder) {
  unsigned mask = 0022;
  CKPT_TRY_ASSIGN(std::string status, io::read_file("/proc/self/status", 1 << 20));
  if (size_t at = status.find("\nUmask:\t"); at != std::string::npos) {
    std::from_chars(status.data() + at + 8, status.data() + status.size(), mask, 8);
  }
  if (::chmod(folder.c_str(), 0777 & ~mask) != 0) return sys_error(folder.string(), "cannot set its mode");
  return {};
}

ConvertReport report(const torch_dist::Plan& plan) {
  ConvertReport out;
  out.source_format = plan.source->format;
  for (const torch_dist::FilePlan& file : plan.files) out.files.emplace_back(file.name, file.size);
  out.tensors = plan.tensors.size();
  out.objects = plan.objects.size();
  out.shards = plan.items.size() - plan.objects.size();
  out.excluded = plan.excluded;
  out.payload_bytes = plan.payload_bytes;
  out.total_bytes = plan.total_bytes;
  out.notes = plan.source->warnings;
  out.notes.insert(out.notes.end(), plan.notes.begin(), plan.notes.end());
  return out;
}

Result<uint64_t> bytes_in(const fs::path& folder) {
  uint64_t total = 0;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) total += it->file_size(ec);
  if (ec) return sys_error(ec.value(), folder.string(), "cannot list");
  return total;
}

}  // namespace

Result<ConvertReport> convert(const ConvertRequest& request, ProgressSink& progress, const Cancel& cancel) {
  Stopwatch watch;
  CKPT_TRY_ASSIGN(tensor::Catalog source, open_checkpoint(request.source, {}));
  CKPT_TRY(check_places(request.source, request.destination));
  CKPT_TRY_ASSIGN(torch_dist::Plan plan, torch_dist::plan_write(source, request.plan));
  ConvertReport out = report(plan);
  // Creating the staging folder also says whether the destination may be used; a dry run gives the same answers.
  CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(request.destination, request.force));
  CKPT_TRY(check_room(staged.path(), plan.total_bytes));
  if (!request.dry_run) {
    CKPT_TRY(apply_umask(staged.path()));
    const torch_dist::WriteControl control{request.workers, request.durable, progress, cancel};
    CKPT_TRY(torch_dist::write(plan, staged.path(), control));
    CKPT_TRY_ASSIGN(out.total_bytes, bytes_in(staged.path()));
    CKPT_TRY(staged.commit(plan.last_file(), request.durable));
  }
  out.duration_us = watch.elapsed_us();
  return out;
}

}  // namespace ckpt::formats
