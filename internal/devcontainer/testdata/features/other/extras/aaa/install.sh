#!/bin/sh
set -e
echo "installing aaa"
