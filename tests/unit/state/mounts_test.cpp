#include <doctest/doctest.h>
#include <sys/sysmacros.h>

#include "lib/state/cgroups/capture.h"
#include "lib/state/mounts/mountinfo.h"
#include "lib/state/mounts/overlay.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/user.h"

using namespace ckpt;
using state::MountSource;

namespace {

constexpr const char* kInfo =
    "110 88 254:0 /srv/root / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n"
    "111 110 0:40 / /dev rw,nosuid master:7 propagate_from:2 - tmpfs tmp\\040fs rw,size=64k\n"
    "112 111 0:40 /null /dev/a\\134b ro - tmpfs tmpfs rw\n";

store::Mount mount(int parent, int filesystem, const char* root, const std::string& point, const char* host = "") {
  store::Mount out;
  out.parent = parent, out.filesystem = filesystem;
  out.root = root, out.point = point, out.host = host;
  return out;
}

store::MemoryFile file(const char* path, uint32_t mode) {
  store::MemoryFile out;
  out.path = path, out.mode = mode;
  return out;
}

/// A root of the host's, and what `types` names, one below the other.
store::Mounts chain(const std::vector<std::string>& types) {
  store::Mounts out;
  out.filesystems.push_back({1, "ext4", "/dev/vda", "rw", {}});
  out.mounts.push_back(mount(-1, 0, "/srv/root", "/", "/srv/root"));
  for (const std::string& type : types) {
    const int parent = static_cast<int>(out.mounts.size()) - 1;
    const std::string& on = out.mounts.back().point;
    out.filesystems.push_back({static_cast<uint64_t>(parent) + 2, type, type, "rw", {}});
    if (state::is_in_memory(type)) out.filesystems.back().files.push_back(file("", S_IFDIR | 0755));
    out.mounts.push_back(mount(parent, parent + 1, "/", (on == "/" ? "" : on) + "/" + type));
  }
  return out;
}

Code code_of(const Result<void>& result) { return result ? Code::kBug : result.error().code; }

}  // namespace

TEST_CASE("mountinfo: fields, escapes and propagation") {
  auto lines = capture::parse_mountinfo(kInfo);
  REQUIRE(lines);
  REQUIRE(lines->size() == 3);
  CHECK((*lines)[0].shared);
  CHECK_FALSE((*lines)[0].slave);
  CHECK((*lines)[0].device == makedev(254, 0));
  CHECK((*lines)[0].super_options == "rw,discard");
  CHECK((*lines)[1].slave);
  CHECK((*lines)[1].source == "tmp fs");
  CHECK((*lines)[2].point == "/dev/a\\b");
  CHECK((*lines)[2].parent == 111);
}

TEST_CASE("mountinfo: cut at every byte it is understood or refused") {
  const std::string text = kInfo;
  for (size_t end = 0; end < text.size(); ++end) (void)capture::parse_mountinfo(text.substr(0, end));
  CHECK_FALSE(capture::parse_mountinfo("1 2 3:4 / / rw\n"));
  CHECK_FALSE(capture::parse_mountinfo("x 2 3:4 / / rw - a b c\n"));
}

TEST_CASE("mounts: a folder is below itself and what begins with it and a slash") {
  std::string rest;
  CHECK(state::below("/a/b", "/a", rest));
  CHECK(rest == "b");
  CHECK(state::below("/a", "/a", rest));
  CHECK(rest.empty());
  CHECK(state::below("/a/b", "/", rest));
  CHECK(rest == "a/b");
  CHECK_FALSE(state::below("/ab", "/a", rest));
  CHECK_FALSE(state::below("/", "/a", rest));
}

TEST_CASE("mounts: each comes from where it can") {
  store::Mounts mounts = chain({"proc", "tmpfs"});
  mounts.mounts.push_back(mount(1, 1, "/sys", "/proc/sys"));
  auto plan = state::plan_mounts(mounts, {});
  REQUIRE(plan);
  CHECK((*plan)[0].kind == MountSource::Kind::kHost);
  CHECK((*plan)[1].kind == MountSource::Kind::kNew);
  CHECK((*plan)[2].kind == MountSource::Kind::kNew);
  CHECK((*plan)[3].kind == MountSource::Kind::kNew);
  CHECK((*plan)[3].path == "sys");
  plan = state::plan_mounts(mounts, {.root = "/elsewhere", .external = {{"/proc/tmpfs", "/given"}}});
  REQUIRE(plan);
  CHECK((*plan)[0].path == "/elsewhere");
  CHECK((*plan)[2].kind == MountSource::Kind::kGiven);
  CHECK((*plan)[2].path == "/given");
}

TEST_CASE("mounts: what lies below a root that is given comes from there") {
  store::Mounts mounts = chain({});
  mounts.mounts.push_back(mount(0, 0, "/srv/root/etc", "/etc", "/srv/root/etc"));
  auto plan = state::plan_mounts(mounts, {.root = "/elsewhere", .external = {}});
  REQUIRE(plan);
  CHECK((*plan)[1].kind == MountSource::Kind::kOther);
  CHECK((*plan)[1].other == 0);
  CHECK((*plan)[1].path == "etc");
}

TEST_CASE("mounts: what there is no way for is refused by name, each one") {
  store::Mounts mounts = chain({"fuse.x", "tmpfs", "fuse.y"});
  auto plan = state::plan_mounts(mounts, {});
  REQUIRE_FALSE(plan);
  CHECK(plan.error().code == Code::kUnsupported);
  REQUIRE(plan.error().causes.size() == 2);
  CHECK(plan.error().causes[0].find("/fuse.x") != std::string::npos);
  CHECK(state::mounts_in_the_way(mounts).size() == 2);
  mounts.mounts[1].external = "key";
  CHECK(state::mounts_in_the_way(mounts).size() == 1);
  CHECK_FALSE(state::plan_mounts(mounts, {.root = "", .external = {{"/fuse.x/tmpfs/fuse.y", "/x"}}}));
  CHECK(state::plan_mounts(mounts, {.root = "", .external = {{"/fuse.x/tmpfs/fuse.y", "/x"}, {"key", "/y"}}}));
  CHECK_FALSE(state::plan_mounts({}, {}));
}

TEST_CASE("mounts: an overlay is made of folders that are named by whole paths") {
  using Folders = std::vector<std::string>;
  const auto layers = [](const char* options) { return state::overlay_folders(options).value().layers; };
  const auto others = [](const char* options) { return state::overlay_folders(options).value().others; };
  CHECK(layers("rw,lowerdir=/a:/b c,upperdir=/u,workdir=/w,xino=off") == Folders{"/u", "/a", "/b c"});
  CHECK(others("rw,lowerdir=/a:/b c,upperdir=/u,workdir=/w,xino=off") == Folders{"/w"});
  CHECK(layers("ro,lowerdir+=/a,lowerdir+=/b,datadir+=/d,index=on") == Folders{"/a", "/b"});
  CHECK(others("ro,lowerdir+=/a,lowerdir+=/b,datadir+=/d,index=on") == Folders{"/d"});
  CHECK(layers("lowerdir=/a::/data") == Folders{"/a", "/data"});
  for (const char* odd :
       {"", "rw", "lowerdir=a", "lowerdir=/a,upperdir=u", "lowerdir", "lowerdir=/a\\:b", "lowerdir=/a,/b",
        "lowerdir=/a,upperdir=/u:/v"})
    CHECK_FALSE(state::overlay_folders(odd));
}

TEST_CASE("mounts: an overlay's options are given again, or made such that nothing is written to its folders") {
  using state::OverlayUse;
  const std::string usual = "rw,lowerdir=/a:/b,upperdir=/u,workdir=/w,uuid=on,xino=off";
  CHECK(state::overlay_mount_options(usual, OverlayUse::kItself) ==
        "lowerdir=/a:/b,upperdir=/u,workdir=/w,uuid=on,xino=off");
  CHECK(state::overlay_mount_options(usual, OverlayUse::kOnlyRead) == "index=off,lowerdir=/u:/a:/b,xino=off");
  CHECK(state::overlay_mount_options(usual, OverlayUse::kTry) == "index=on,lowerdir=/u,upperdir=/u,workdir=/u");
  const std::string apart = "userxattr,lowerdir+=/a,upperdir=/u,workdir=/w,index=on";
  CHECK(state::overlay_mount_options(apart, OverlayUse::kOnlyRead) ==
        "index=off,lowerdir+=/u,userxattr,lowerdir+=/a");
  const std::string lower = "ro,seclabel,lowerdir=/a:/b";
  CHECK(state::overlay_mount_options(lower, OverlayUse::kOnlyRead) == "lowerdir=/a:/b");
  CHECK(state::overlay_mount_options(lower, OverlayUse::kTry).empty());
  CHECK(state::can_be_overlay_options("lowerdir=/" + std::string(4000, 'a')));
  CHECK_FALSE(state::can_be_overlay_options("lowerdir=/" + std::string(4096, 'a')));
  CHECK_FALSE(state::can_be_overlay_options("lowerdir=/a,upperdir=/" + std::string(1400, 'u')));
}

TEST_CASE("mounts: what another mount namespace of the tree has comes from there") {
  const store::Mounts first = chain({"tmpfs", "fuse.x"});
  store::Mounts second = chain({"tmpfs"});
  second.filesystems[1].files.clear();
  second.mounts[1].root = "/folder";
  CHECK_FALSE(state::plan_mounts(second, {}));
  auto plan = state::plan_mounts(second, {}, {&second, &first});
  REQUIRE(plan);
  CHECK((*plan)[1].kind == MountSource::Kind::kElsewhere);
  CHECK((*plan)[1].whose == 0);
  second.mounts.pop_back();
  store::Mounts third = chain({"tmpfs"});
  third.mounts[1].root = "/folder";
  plan = state::plan_mounts(third, {}, {&second, &first});
  REQUIRE(plan);
  CHECK((*plan)[1].whose == 1);
  CHECK((*plan)[1].other == 1);
  CHECK((*plan)[1].path == "folder");
}

TEST_CASE("mounts: further namespaces that make no sense are damaged") {
  store::TreeImage good;
  good.processes.resize(2);
  good.namespaces.further.resize(2);
  good.namespaces.further[0].kind = "uts";
  good.namespaces.further[1].kind = "mnt", good.namespaces.further[1].mounts = chain({});
  good.processes[1].namespaces = {0, 1};
  good.files.resize(1);
  good.files[0].mounts = 1;
  CHECK(state::validate_further(good));
  auto broken = [&](auto change) {
    store::TreeImage tree = good;
    change(tree);
    return code_of(state::validate_further(tree)) == Code::kCorrupt;
  };
  CHECK(broken([](auto& tree) { tree.processes[1].namespaces = {0, 2}; }));
  CHECK(broken([](auto& tree) { tree.processes[1].namespaces = {-1}; }));
  CHECK(broken([](auto& tree) { tree.processes[1].namespaces = {0, 0}; }));
  CHECK(broken([](auto& tree) { tree.processes[0].namespaces = {0}; }));
  CHECK(broken([](auto& tree) { tree.namespaces.further[0].kind = "pid"; }));
  CHECK(broken([](auto& tree) { tree.namespaces.further[0].mounts = tree.namespaces.further[1].mounts; }));
  CHECK(broken([](auto& tree) { tree.namespaces.further[1].mounts = {}; }));
  CHECK(broken([](auto& tree) { tree.files[0].mounts = 0; }));
  CHECK(broken([](auto& tree) { tree.files[0].mounts = 2; }));
}

TEST_CASE("mounts: a description that leads elsewhere is damaged") {
  const store::Mounts good = chain({"tmpfs", "proc"});
  CHECK(state::validate_mounts(good));
  auto broken = [&](auto change) {
    store::Mounts mounts = good;
    change(mounts);
    return code_of(state::validate_mounts(mounts)) == Code::kCorrupt;
  };
  CHECK(broken([](auto& m) { m.mounts[1].parent = 1; }));
  CHECK(broken([](auto& m) { m.mounts[1].parent = -1; }));
  CHECK(broken([](auto& m) { m.mounts[0].parent = 0; }));
  CHECK(broken([](auto& m) { m.mounts[2].filesystem = 9; }));
  CHECK(broken([](auto& m) { m.mounts[2].point = "/tmpfs/../../proc"; }));
  CHECK(broken([](auto& m) { m.mounts[2].point = "/other"; }));
  CHECK(broken([](auto& m) { m.mounts[2].root = "sys"; }));
  CHECK(broken([](auto& m) { m.mounts[0].host = "/srv/../etc"; }));
  auto with_file = [&](const store::MemoryFile& one) {
    return broken([&](auto& m) { m.filesystems[1].files.push_back(one); });
  };
  CHECK_FALSE(with_file(file("a/b", S_IFREG | 0644)));
  CHECK(with_file(file("", S_IFDIR | 0755)));
  CHECK(with_file(file("../up", S_IFREG | 0644)));
  CHECK(with_file(file("/top", S_IFREG | 0644)));
  CHECK(with_file(file("a//b", S_IFREG | 0644)));
  CHECK(with_file(file("link", S_IFLNK | 0777)));
  store::MemoryFile later = file("later", S_IFREG | 0644), bytes = file("bytes", S_IFREG | 0644);
  later.link_of = 7, bytes.size = 7;
  CHECK(with_file(later));
  CHECK(with_file(bytes));  // without a memory space
}

TEST_CASE("mounts: --external wants a key and a value") {
  auto good = state::parse_external_mounts({"mnt[/etc/hosts]:/tmp/x", "mnt[key]:y"});
  REQUIRE(good);
  CHECK(good->size() == 2);
  CHECK((*good)["/etc/hosts"] == "/tmp/x");
  for (const char* text : {"", "mnt", "mnt[]:x", "mnt[a]", "mnt[a]:", "net[a]:b"})
    CHECK_FALSE(state::parse_external_mounts({text}));
  CHECK_FALSE(state::parse_external_mounts({"mnt[a]:x", "mnt[a]:y"}));
}

namespace {

store::Namespaces with_maps(std::vector<store::IdRange> uids) {
  store::Namespaces out;
  out.own = {"user", "net"};
  out.user.uids = std::move(uids);
  out.user.owns = {"net"};
  return out;
}

}  // namespace

TEST_CASE("the root of a control group namespace is what lies above the path inside") {
  CHECK(capture::root_of_cgroup("/a/b", "/") == "/a/b");
  CHECK(capture::root_of_cgroup("/a/b/c", "/c") == "/a/b");
  CHECK(capture::root_of_cgroup("/c", "/c") == "/");
  CHECK_FALSE(capture::root_of_cgroup("/a/c", "/../c").has_value());
  CHECK_FALSE(capture::root_of_cgroup("/a/b", "/c").has_value());
}

TEST_CASE("ids are translated in both directions, and where there is no number there is none") {
  const std::vector<store::IdRange> map = {{0, 1000, 1}, {1, 100000, 65536}};
  CHECK(state::id_inside(map, 1000) == 0);
  CHECK(state::id_inside(map, 100005) == 6);
  CHECK_FALSE(state::id_inside(map, 0).has_value());
  CHECK_FALSE(state::id_inside(map, 165536).has_value());
  CHECK(state::id_outside(map, 65536) == 165535);
  CHECK_FALSE(state::id_outside(map, 65537).has_value());
  CHECK(state::id_map_text(map) == "0 1000 1\n1 100000 65536\n");
}

TEST_CASE("id maps that no kernel takes are damage") {
  CHECK(state::validate_user_namespace(with_maps({{0, 0, ~0u}})));
  CHECK(state::validate_user_namespace(with_maps({{0, 1000, 1}, {1, 100000, 65536}})));
  CHECK_FALSE(state::validate_user_namespace(with_maps({{0, 1000, 0}})));
  CHECK_FALSE(state::validate_user_namespace(with_maps({{5, ~0u - 3, 10}})));
  CHECK_FALSE(state::validate_user_namespace(with_maps({{0, 1000, 10}, {9, 2000, 10}})));
  CHECK_FALSE(state::validate_user_namespace(with_maps({{0, 1000, 10}, {10, 1009, 10}})));
  std::vector<store::IdRange> many;
  for (uint32_t i = 0; i < 341; ++i) many.push_back({i, i, 1});
  CHECK_FALSE(state::validate_user_namespace(with_maps(many)));
}

TEST_CASE("a user namespace owns nothing that is not there, and has no maps where there is none") {
  store::Namespaces one = with_maps({{0, 0, 1}});
  one.user.owns = {"uts"};
  CHECK_FALSE(state::validate_user_namespace(one));
  one.user.owns.clear();
  one.own = {"net"};
  CHECK_FALSE(state::validate_user_namespace(one));
  one.user = {};
  CHECK(state::validate_user_namespace(one));
}
