#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "core/unique_fd.h"
#include "lockstep/rpc.h"

namespace lockstep::rpc {
namespace {

class FolderDirectory : public Directory {
 public:
  explicit FolderDirectory(std::string path) : path_(std::move(path)) {
    struct stat status {};
    if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
      throw_errno(concat("rpc: making the folder ", path_));
    }
    if (stat(path_.c_str(), &status) != 0) throw_errno(concat("rpc: the folder ", path_));
    // What is in it decides who is called, and has the secret.
    if (status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
      throw InvalidArgument(concat("rpc: the folder ", path_, " has mode ", std::oct,
                                   status.st_mode & 07777,
                                   "; it must be yours and closed to others (chmod 700)"));
    }
  }

  void set(const std::string& key, const std::string& value) override {
    const std::string written = write_beside(value);
    if (std::rename(written.c_str(), file_of(key).c_str()) != 0) {
      throw_errno(concat("rpc: writing ", file_of(key)));
    }
  }

  std::optional<std::string> find(const std::string& key) override {
    std::ifstream file(file_of(key), std::ios::binary);
    if (!file) return std::nullopt;
    std::ostringstream text;
    text << file.rdbuf();
    return std::move(text).str();
  }

  std::string set_once(const std::string& key, const std::string& value) override {
    const std::string written = write_beside(value);
    const int linked = link(written.c_str(), file_of(key).c_str());
    const int error = errno;
    unlink(written.c_str());
    if (linked != 0 && error != EEXIST) {
      errno = error;
      throw_errno(concat("rpc: writing ", file_of(key)));
    }
    return find(key).value_or(value);
  }

 private:
  std::string file_of(const std::string& key) const {
    std::string name = key;
    for (char& each : name) {
      if (each == '/') each = '@';
    }
    return concat(path_, "/", name);
  }

  // A whole file of its own, which then gets the name: readers never see half of it.
  std::string write_beside(const std::string& value) const {
    static std::atomic<int> count = 0;
    const std::string name = concat(path_, "/.new-", getpid(), "-", count++);
    std::ofstream file(name, std::ios::binary);
    file << value;
    file.close();
    if (!file) throw_errno(concat("rpc: writing ", name));
    return name;
  }

  std::string path_;
};

}  // namespace

std::shared_ptr<Directory> directory_in_folder(const std::string& path) {
  return std::make_shared<FolderDirectory>(path);
}

}  // namespace lockstep::rpc
