#!/bin/sh
set -e
echo "installing zz-last"
