#include "lib/engine/new_image.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/memory/spaces.h"
#include "lib/memory/tracking_daemon.h"

namespace ckpt::engine {

namespace {

/// Whether --force replaces an image that `parent` is, or reads from.
bool replaces(const std::filesystem::path& dir, const store::ImageReader& parent) {
  const auto there = store::read_manifest(dir);
  if (!there) return false;
  const auto chain = parent.chain();
  return std::any_of(chain.begin(), chain.end(), [&](const store::Manifest* image) { return image->id == there->id; });
}

}  // namespace

/// The staging folder before the one who would take it away.
NewImage::~NewImage() {
  writer_.reset();
  tidier_.reset();
}

Result<void> NewImage::choose_parent(Tracees& tracees) {
  const DumpOptions& options = context_.options;
  if (options.no_prev) return {};
  auto tracked = capture::tracked_image(tracees.of(tracees.members()[0]).key);
  parent_ = options.prev;
  if (parent_.empty() && !tracked) return {};
  if (parent_.empty()) parent_ = tracked->path;
  auto image = store::ImageReader::open(parent_);
  if (!image && options.prev.empty()) {
    context_.progress.note("the image of the last pre-dump (" + parent_.string() +
                           ") cannot be used: " + image.error().text() + "; copying everything");
    parent_.clear();
    return {};
  }
  if (!image) return std::move(image).error();
  if (options.prev.empty() && options.force && replaces(options.dir, **image)) {
    context_.progress.note("the image of the last pre-dump (" + parent_.string() +
                           ") reads from the one that --force replaces: copying everything");
    parent_.clear();
    return {};
  }
  parent_manifest_ = (*image)->manifest();
  const int root = parent_manifest_->tree.root().pid;
  if (root != options.pid) {
    return fail(Code::kUsage, parent_.string(),
                "is an image of process " + std::to_string(root) + ", not of " + std::to_string(options.pid));
  }
  for (auto& [pid, tracee] : tracees.all()) {
    auto image_of = capture::tracked_image(tracee.key);
    tracee.tracking = image_of && image_of->id == parent_manifest_->id ? Tracking::kKept : Tracking::kNone;
  }
  if (!tracees.any_tracked())
    context_.progress.note("no write tracking since " + parent_.string() + ": every page is read and compared");
  return {};
}

Result<void> NewImage::make_writer() {
  store::ImageWriter::Options options;
  options.force = context_.options.force, options.compress = context_.options.compress, options.parent = parent_;
  options.sha256_pages = context_.options.sha256_pages, options.sink = context_.options.pages;
  CKPT_TRY_ASSIGN(writer_, store::ImageWriter::create(context_.options.dir, options));
  return {};
}

Result<void> NewImage::open() {
  CKPT_TRY(make_writer());
  if (auto tidier = Tidier::spawn(context_.options.pid, std::filesystem::absolute(writer_->staging())))
    tidier_.emplace(std::move(*tidier));
  return {};
}

Result<void> NewImage::number_spaces(store::TreeImage& tree) const {
  std::vector<const store::TreeImage*> earlier;
  if (parent_manifest_) earlier.push_back(&parent_manifest_->tree);
  if (!numbered_.processes.empty()) earlier.push_back(&numbered_);
  return capture::number_spaces(tree, earlier);
}

}  // namespace ckpt::engine
