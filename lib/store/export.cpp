#include "lib/store/export.h"

#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "lib/base/digest.h"
#include "lib/base/file_stream.h"
#include "lib/base/io.h"
#include "lib/base/json_writer.h"
#include "lib/base/staged_dir.h"
#include "lib/store/chain_layout.h"
#include "lib/store/image_files.h"
#include "lib/store/tar.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

/// Where an image lies in the archive: alone it is all of it.
std::string inner_folder(const ChainImage& image, const std::vector<ChainImage>& chain) {
  return chain.size() == 1 ? "" : image.dir.lexically_relative(common_folder(chain)).string() + "/";
}

class Export {
 public:
  Export(const std::function<Result<void>(ByteSpan)>& sink, ProgressSink& progress, const Cancel& cancel)
      : sink_(sink), progress_(progress), cancel_(cancel), tar_([this](ByteSpan bytes) { return put(bytes); }) {}

  Result<ExportReport> run(const fs::path& dir, Trust trust) {
    std::error_code ec;
    const fs::path top = fs::canonical(dir, ec);
    if (ec) return sys_error(ec.value(), dir.string(), "cannot open the image");
    CKPT_TRY_ASSIGN(std::vector<ChainImage> chain, find_chain(top));
    uint64_t bytes = 0;
    std::vector<LoadedImage> images;
    for (const ChainImage& image : chain) {
      CKPT_TRY_ASSIGN(LoadedImage loaded, load_description(image.dir, trust));
      if (!(loaded.manifest == image.manifest)) return fail(Code::kMismatch, image.dir.string(), "changed meanwhile");
      bytes += loaded.stored_bytes();
      images.push_back(std::move(loaded));
    }
    progress_.begin("export", bytes);
    for (size_t i = 0; i < chain.size(); ++i) CKPT_TRY(add_image(images[i], inner_folder(chain[i], chain)));
    CKPT_TRY(tar_.finish());
    report_.manifest = std::move(chain[0].manifest), report_.images = chain.size();
    report_.sha256 = digest_.finish_hex();
    return report_;
  }

 private:
  Result<void> put(ByteSpan bytes) {
    report_.bytes += bytes.size();
    digest_.update(bytes);
    return sink_(bytes);
  }

  /// The manifest and its digest first: they say what may follow.
  Result<void> add_image(const LoadedImage& image, const std::string& folder) {
    CKPT_TRY_ASSIGN(const UniqueFd fd, image.open(kManifestName));
    CKPT_TRY_ASSIGN(const std::string manifest, io::read_all(fd.get(), kMaxManifest, image.name_of(kManifestName)));
    if (sha256_hex(as_bytes(manifest)) != image.manifest_sha256)
      return fail(Code::kMismatch, image.name_of(kManifestName), "changed meanwhile");
    CKPT_TRY(add_text(folder + kManifestName, manifest));
    CKPT_TRY(add_text(folder + kManifestDigestName, manifest_digest_line(manifest)));
    for (const std::string& name : file_names(image.pages_files())) CKPT_TRY(add_file(image, name, folder));
    return {};
  }

  Result<void> add_text(const std::string& path, const std::string& text) {
    CKPT_TRY(tar_.begin(path, text.size()));
    CKPT_TRY(tar_.write(as_bytes(text)));
    return tar_.end();
  }

  Result<void> add_file(const LoadedImage& image, const std::string& name, const std::string& folder) {
    const StoredFile& stored = image.stored(name);
    CKPT_TRY_ASSIGN(const UniqueFd fd, image.open(name));
    CKPT_TRY(tar_.begin(folder + name, stored.size));
    FileDigest digest;
    FileStream stream;
    CKPT_TRY(stream.read(fd.get(), 0, stored.size, image.name_of(name), [&](ByteSpan piece) -> Result<void> {
      CKPT_TRY(cancel_.check());
      digest.update(piece);
      progress_.advance(piece.size());
      return tar_.write(piece);
    }));
    if (!digest.matches(stored))
      return fail(Code::kCorrupt, image.name_of(name), "does not match its digest in the manifest");
    return tar_.end();
  }

  const std::function<Result<void>(ByteSpan)>& sink_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  Sha256 digest_;
  ExportReport report_;
  TarWriter tar_;
};

struct Blob {
  std::string digest;
  uint64_t size = 0;
};

/// Refers to a blob.
void put_descriptor(JsonWriter& json, const char* type, const Blob& blob) {
  json.members("mediaType", type, "digest", "sha256:" + blob.digest, "size", blob.size);
}

Result<Blob> put_blob(const fs::path& blobs, const std::string& text) {
  const Blob out{sha256_hex(as_bytes(text)), text.size()};
  CKPT_TRY(io::write_file(blobs / out.digest, text));
  return out;
}

/// What podman would run: nothing. What it is says an annotation.
std::string oci_config(const ExportReport& layer) {
  JsonWriter json;
  json.open('{');
  json.members("created", layer.manifest.created, "architecture", "amd64", "os", "linux");
  json.open("config", '{');
  json.close();
  json.open("rootfs", '{');
  json.members("type", "layers", "diff_ids", std::vector<std::string>{"sha256:" + layer.sha256});
  json.close();
  return std::move(json).finish();
}

std::string oci_manifest(const Blob& config, const ExportReport& layer) {
  JsonWriter json;
  json.open('{');
  json.members("schemaVersion", uint64_t{2}, "mediaType", "application/vnd.oci.image.manifest.v1+json");
  json.open("config", '{');
  put_descriptor(json, "application/vnd.oci.image.config.v1+json", config);
  json.close();
  json.open("layers", '[');
  json.row('{');
  put_descriptor(json, "application/vnd.oci.image.layer.v1.tar", {layer.sha256, layer.bytes});
  json.close();
  json.close();
  json.open("annotations", '{');
  json.members("ckpt.image.id", layer.manifest.id, "ckpt.image.kind", layer.manifest.kind,
               "org.opencontainers.image.created", layer.manifest.created);
  json.close();
  return std::move(json).finish();
}

std::string oci_index(const Blob& manifest) {
  JsonWriter json;
  json.open('{');
  json.members("schemaVersion", uint64_t{2}, "mediaType", "application/vnd.oci.image.index.v1+json");
  json.open("manifests", '[');
  json.row('{');
  put_descriptor(json, "application/vnd.oci.image.manifest.v1+json", manifest);
  json.open("annotations", '{');
  json.members("org.opencontainers.image.ref.name", "latest");
  json.close();
  json.close();
  return std::move(json).finish();
}

}  // namespace

Result<ExportReport> export_tar(const fs::path& dir, Trust trust, const std::function<Result<void>(ByteSpan)>& sink,
                                ProgressSink& progress, const Cancel& cancel) {
  return Export(sink, progress, cancel).run(dir, trust);
}

Result<ExportReport> export_oci(const fs::path& dir, Trust trust, const fs::path& to, bool force,
                                ProgressSink& progress, const Cancel& cancel) {
  constexpr const char* kIndexName = "index.json";
  CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(to, force));
  const fs::path blobs = staged.path() / "blobs" / "sha256", unnamed = staged.path() / "layer";
  std::vector<fs::path> made;
  CKPT_TRY(io::make_folders(blobs, made));
  CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(unnamed, O_WRONLY | O_CREAT | O_EXCL));
  auto write = [&](ByteSpan bytes) { return io::write_all(fd.get(), bytes, unnamed.string()); };
  CKPT_TRY_ASSIGN(const ExportReport layer, export_tar(dir, trust, write, progress, cancel));
  std::error_code ec;
  fs::rename(unnamed, blobs / layer.sha256, ec);
  if (ec) return sys_error(ec.value(), unnamed.string(), "cannot be given its name");
  CKPT_TRY_ASSIGN(const Blob config, put_blob(blobs, oci_config(layer)));
  CKPT_TRY_ASSIGN(const Blob manifest, put_blob(blobs, oci_manifest(config, layer)));
  CKPT_TRY(io::write_file(staged.path() / kIndexName, oci_index(manifest)));
  JsonWriter version;
  version.row_of("imageLayoutVersion", "1.0.0");
  CKPT_TRY(io::write_file(staged.path() / "oci-layout", std::move(version).finish()));
  CKPT_TRY(cancel.check());
  CKPT_TRY(staged.commit(kIndexName));
  return layer;
}

}  // namespace ckpt::store
