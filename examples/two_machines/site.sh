#!/bin/sh
# A site's machine: site.sh HOST:PORT NAME DATA. The first call makes the key NAME.pub, which goes to
# the server's operator; ca.pem comes from there.
set -eu
if [ ! -f "keys/$2.key" ]; then
    coterie deploy keys keys "$2"
    echo "send keys/$2.pub to the server's operator, put ca.pem here, and call this again"
    exit 0
fi
exec coterie deploy client --server "$1" --data "$3" --ca ca.pem --key "keys/$2.key"
