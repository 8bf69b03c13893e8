// How a client stores an entry at once, and how it reads one and proves its bytes. As for Client.
#pragma once

#include <string>

#include "tests/soak/client.h"

namespace kvcachefs::soak {

enum class How { kRenamed, kNameless, kDurable };

// store() stores a new version of a whole file in a directory that is made if it is missing. False if it was
// refused.
bool store(Client& client, const std::string& directory, const std::string& name, How how);
// read_whole() opens, reads and proves; what is not there is a miss.
void read_whole(Client& client, const std::string& directory, const std::string& name);
void read_open(Client& client, const File& file, const std::string& path, const std::string& name);
// write_all() writes in pieces; false at the first that is refused or short.
bool write_all(Client& client, const File& file, std::string_view path, std::string_view content,
               size_t piece);

}  // namespace kvcachefs::soak
