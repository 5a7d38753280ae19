// export, import: process images as one stream, and as images of containers.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "cli/command.h"
#include "cli/plural.h"
#include "cli/remote_images.h"
#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/json_writer.h"
#include "lib/base/staged_dir.h"
#include "lib/base/text.h"
#include "lib/remote/scratch_folder.h"
#include "lib/store/export.h"
#include "lib/store/image_files.h"
#include "lib/store/job.h"
#include "lib/store/squash.h"

namespace ckpt::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kStream = "-";

struct ExportFlags {
  std::string path, output, oci;
  bool squash = false, force = false, trust = false;

  store::Trust trusted() const { return trust ? store::Trust::kAnybody : store::Trust::kOwn; }
};

Result<store::ExportReport> write_stream(Context& context, const fs::path& image, const ExportFlags& flags) {
  if (context.out.json()) return fail(Code::kUsage, "--json", "does not go with -o -: both write to stdout");
  if (::isatty(STDOUT_FILENO) == 1)
    return Error(Code::kUsage, "-o -", "would write the archive to a terminal").with_hint("pipe it, or give -o a file");
  auto write = [](ByteSpan bytes) { return io::write_all(STDOUT_FILENO, bytes, "stdout"); };
  return store::export_tar(image, flags.trusted(), write, context.progress, context.cancel);
}

Result<store::ExportReport> write_archive(Context& context, const fs::path& image, const ExportFlags& flags) {
  CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(flags.output, flags.force, StagedDir::Kind::kFile));
  const std::string name = staged.destination().filename();
  const fs::path path = staged.path() / name;
  CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL));
  auto write = [&](ByteSpan bytes) { return io::write_all(fd.get(), bytes, path.string()); };
  CKPT_TRY_ASSIGN(const store::ExportReport report,
                  store::export_tar(image, flags.trusted(), write, context.progress, context.cancel));
  CKPT_TRY(context.cancel.check());
  CKPT_TRY(staged.commit(name));
  return report;
}

Result<store::ExportReport> write_image(Context& context, const fs::path& image, const ExportFlags& flags) {
  if (!flags.oci.empty())
    return store::export_oci(image, flags.trusted(), flags.oci, flags.force, context.progress, context.cancel);
  return flags.output == kStream ? write_stream(context, image, flags) : write_archive(context, image, flags);
}

Result<store::ExportReport> squash_and_write(Context& context, const ExportFlags& flags) {
  CKPT_TRY_ASSIGN(const remote::ScratchFolder scratch, remote::ScratchFolder::make());
  const fs::path one = scratch.path() / "image";
  store::SquashOptions options;
  options.trust = flags.trusted();
  CKPT_TRY(store::squash(flags.path, one, options, context.progress, context.cancel));
  return write_image(context, one, flags);
}

Result<void> run_export(Context& context, const ExportFlags& flags) {
  if (flags.output.empty() == flags.oci.empty())
    return Error(Code::kUsage, "export", "needs one of -o and --oci").with_hint("-o - writes to stdout");
  CKPT_TRY(check_trust(flags.path, flags.trust));
  if (store::looks_like_job(flags.path))
    return fail(Code::kUnsupported, flags.path, "is the image of a job: each of its parts is exported by itself");
  Stopwatch watch;
  CKPT_TRY_ASSIGN(const store::ExportReport report,
                  flags.squash ? squash_and_write(context, flags) : write_image(context, flags.path, flags));
  const std::string to = flags.oci.empty() ? flags.output : flags.oci;
  if (context.out.json()) {
    JsonWriter json;
    json.open('{');
    json.members("schema", "ckpt.export/1", "image", flags.path, "destination", to, "oci", !flags.oci.empty(), "id",
                 report.manifest.id, "images", report.images, "bytes", report.bytes, "sha256", report.sha256,
                 "duration_us", watch.elapsed_us());
    context.out.data(std::move(json).finish());
  }
  context.out.info(fmt::format("exported {} of {} to {} in {}", counted(report.images, "image"),
                               human_bytes(report.bytes), to == kStream ? "stdout" : escape_for_terminal(to),
                               human_us(watch.elapsed_us())));
  return {};
}

struct ImportFlags {
  std::string archive;
  store::ImportOptions options;
  bool trust = false;
};

Result<UniqueFd> open_archive(const ImportFlags& flags) {
  UniqueFd fd(flags.archive == kStream ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                       : ::open(flags.archive.c_str(), O_RDONLY | O_CLOEXEC));
  const std::string name = flags.archive == kStream ? "stdin" : flags.archive;
  if (!fd) return sys_error(name, "cannot be opened");
  CKPT_TRY(store::check_owner(fd.get(), name, flags.trust ? store::Trust::kAnybody : store::Trust::kOwn));
  return fd;
}

Result<void> run_import(Context& context, const ImportFlags& flags) {
  Stopwatch watch;
  CKPT_TRY_ASSIGN(const UniqueFd fd, open_archive(flags));
  const std::string name = flags.archive == kStream ? "stdin" : flags.archive;
  auto read = [&](MutableByteSpan out) -> Result<size_t> {
    for (;;) {
      CKPT_TRY(context.cancel.check());
      const ssize_t n = ::read(fd.get(), out.data(), out.size());
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) return sys_error(name, "cannot be read");
    }
  };
  CKPT_TRY_ASSIGN(const store::ImportReport report,
                  store::import_tar(read, name, flags.options, context.progress, context.cancel));
  if (context.out.json()) {
    JsonWriter json;
    json.open('{');
    json.members("schema", "ckpt.import/1", "archive", flags.archive, "path", report.path.string(), "id",
                 report.manifest.id, "images", report.images, "bytes", report.bytes, "duration_us",
                 watch.elapsed_us());
    context.out.data(std::move(json).finish());
  }
  context.out.info(fmt::format("imported {} of {} to {} in {}", counted(report.images, "image"),
                               human_bytes(report.bytes), escape_for_terminal(report.path.string()),
                               human_us(watch.elapsed_us())));
  return {};
}

}  // namespace

Command::Run add_export(VerbOptions& app) {
  auto flags = std::make_shared<ExportFlags>();
  app.add_saved("IMAGE", Saved::kImage, flags->path, "The image, with its parents").type_name("PATH|URL").required();
  app.add_option("-o,--output", flags->output, "The archive to write, of tar: -, to stdout").type_name("FILE");
  app.add_option("--oci", flags->oci, "The folder to write, an OCI image layout with the archive as its layer")
      .type_name("DIR");
  app.add_flag("--squash", flags->squash, "A chain as one image without parents, which has a new id");
  app.add_flag("--force", flags->force, "Take the place of what is there");
  app.add_flag("--trust", flags->trust, "Also an image that others own or may write (ckpt-security(7))");
  return [flags](Context& context) { return run_export(context, *flags); };
}

Command::Run add_import(VerbOptions& app) {
  auto flags = std::make_shared<ImportFlags>();
  app.add_option("ARCHIVE", flags->archive, "What export has written: -, from stdin").type_name("FILE").required();
  app.add_option("-f,--images-dir,-D,--dir", flags->options.dir,
                 "The folder that it becomes, or that gets the chain of images")
      .type_name("DIR")
      .required();
  app.add_flag("--force", flags->options.force, "Take the place of what is there");
  app.add_flag("--trust", flags->trust,
               "Also an archive that others own or may write: what it says becomes yours (ckpt-security(7))");
  return [flags](Context& context) { return run_import(context, *flags); };
}

}  // namespace ckpt::cli
