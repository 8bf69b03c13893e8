// mount.kvcachefs(8).
#include "daemon/mount_helper/mount_helper.h"

int main(int argc, char** argv) {
  return kvcachefs::run_mount_helper(argc, argv);
}
