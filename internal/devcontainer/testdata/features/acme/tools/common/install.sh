#!/bin/sh
set -e
echo "installing common"
