#!/bin/sh
set -e
echo "installing First_one"
